package web

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

const (
	// instancesPerPage is the number of instances in one page of a group's list.
	instancesPerPage = 50
	// maxSquares is the largest number of instances that have a square each. In a larger group, instances that need
	// attention have one, and the others are drawn together.
	maxSquares = 500
	// squaresPerLine is the number of squares in one line of the picture of a large group.
	squaresPerLine = 100
	// maxReplacements is the number of replacements that the page of a group lists.
	maxReplacements = 12
)

// groupView shows one group of a shard.
type groupView struct {
	Shard      string
	Group      *nstancev1.GroupStatus
	Tone, Says string
	Settings   config.GroupSpec
	Stats      []stat
	// Classes count the group's instances by class. Total, Outdated and OnDemand count all, the outdated and the
	// on-demand ones.
	Classes                   []count
	Total, Outdated, OnDemand int
	// Squares are the instances that have a square each. More are the others, in a picture of Lines lines.
	Squares []row
	More    []shape
	Lines   int
	List    listFilter
	// Found is the number of instances that the filter selects. Instances are those of one page, which counts from 1.
	Found       int
	Instances   []row
	Page, Pages int
	Plan        *nstancev1.ExplainGroupResponse
	PlanErr     *problem
	// Rules count the instances by the planning rule that classifies them.
	Rules   []ruleCount
	Alerts  []alert
	Running []*replacement
	Done    []*replacement
	Rollout *rolloutView
	// Override lists the settings that an operator changed. Changed is the last change, as far as the journal has it.
	Override []setting
	Changed  *nstancev1.JournalEvent
	Plots    plotsView
	// Scaling is nil if no leader scales the group, or the history cannot be read.
	Scaling *nstancev1.GetScalingHistoryResponse
	// MayChange means that the person may change the group, so that the page has forms. Done is the result of the form
	// that was sent last.
	MayChange bool
	Result    string
}

// listFilter selects and sorts the instances in the list of a group. Its fields are query parameters of the page.
type listFilter struct {
	// Class is a class, or "outdated". If it is empty, all are listed. Search is a part of the text in a row.
	Class, Search string
	// Sort is the name of a column, with a minus in front for the opposite order. If it is empty, the instances that
	// need attention are first, which is the order of the column with the health.
	Sort, Period string
}

// setting is a setting of a group with its value as JSON. Note says what the configuration has in its place, and who
// set the value when.
type setting struct{ Name, Value, Note string }

// count is a number of instances of a class.
type count struct {
	Class, Name string
	Count       int
}

type ruleCount struct {
	Rule  uint32
	Name  string
	Count int
}

// rolloutView is the progress of a rollout.
type rolloutView struct {
	Done, Total uint32
	Paused      bool
	Waits       string
	// Surge is the largest number of instances in a wave. Waves is the number of waves that are left. Running is the
	// number of instances that are being replaced now.
	Surge, Waves, Running int
}

// row is one instance in a list.
type row struct {
	Shard string
	Class string
	*nstancev1.InstanceStatus
}

// Outdated reports whether the instance has an older configuration than its group.
func (r row) Outdated() bool { return r.GetInfraDrift() || r.GetRuntimeDrift() }

// Marks returns the CSS classes of the instance's square.
func (r row) Marks() string {
	marks := r.Class
	if r.Class == "draining" && slices.Contains(classes, r.GetHealth()) {
		marks += " " + r.GetHealth()
	}
	if r.Outdated() {
		marks += " outdated"
	}
	return marks
}

// classes are the classes of instances. Classes that need attention come first.
var classes = []string{"unhealthy", "silent", "unregistered", "unknown", "stopping", "preserved", "draining", "healthy",
	"spare", "deleted"}

// classOf returns "deleted" for a deleted instance, "draining" for one that is being deleted, and "preserved" for a
// failed one that is preserved. It returns "spare" for a spare that is healthy or asleep. For other
// instances it returns their health.
func classOf(i *nstancev1.InstanceStatus) string {
	switch {
	case i.GetState() == "deleted":
		return "deleted"
	case i.GetState() == "deleting":
		return "draining"
	case i.GetPreservedAt() != nil:
		return "preserved"
	case i.GetSpare() && (i.GetHealth() == "healthy" || i.GetHealth() == "asleep"):
		return "spare"
	case !slices.Contains(classes, i.GetHealth()):
		return "unknown"
	}
	return i.GetHealth()
}

func (p *page) showGroup(w http.ResponseWriter, r *http.Request) error {
	shard, name, err := p.groupOf(r)
	if err != nil {
		return err
	}
	live := p.liveURL(url.Values{"shard": {shard}, "group": {name}})
	only := []string{shard}
	listed := start(p, r, only, fleet.Client.ListInstances, &nstancev1.ListInstancesRequest{Group: name})
	planned := start(p, r, only, fleet.Client.ExplainGroup, &nstancev1.ExplainGroupRequest{Group: name})
	group := fleet.Call(r.Context(), p.Fleet, only, fleet.Client.ListGroups,
		&nstancev1.ListGroupsRequest{Group: name})[0]
	instances, plan := listed()[0], planned()[0]
	for _, answer := range []fleet.Outcome{group.Outcome, instances.Outcome} {
		if answer.Err != nil && answer.LastKnown == nil {
			return answer.Err
		}
	}
	g := group.Message.GetGroups()[0]
	view := &groupView{Shard: shard, Group: g, Settings: config.ReadSettings(g.GetMergedJson()),
		Alerts: p.hub.alerts(shard, name), Override: overrideOf(g, p.Now()),
		List: listFilter{r.FormValue("class"), strings.TrimSpace(r.FormValue("search")), r.FormValue("sort"),
			r.FormValue("period")}}
	view.Tone, view.Says = groupState(g)
	view.count(shard, instances.Message.GetInstances(), r.FormValue("page"))
	switch {
	case group.LastKnown != nil:
		view.PlanErr, view.Tone, view.Says = lastKnown(group.Outcome), "bad", "the shard has no leader"
	case plan.Err != nil:
		view.PlanErr = errorView(plan.Err)
	default:
		view.Plan = plan.Message
		view.Rules = countRules(view.Plan.GetInstances())
	}
	if g.GetScaling() != nil && group.LastKnown == nil {
		// A server of an earlier version has no history.
		view.Scaling = fleet.Call(r.Context(), p.Fleet, only, fleet.Client.GetScalingHistory,
			&nstancev1.GetScalingHistoryRequest{Group: name})[0].Message
	}
	now := p.Now()
	var replaced statistics
	p.hub.read(shard, func(h *history) {
		view.Changed = h.changed[name]
		view.Running, view.Done = h.underWay(name, now), h.replacements(name, now.Add(-keepTime))
		if replaced = newStatistics(h.replacements(name, now.Add(-day))); !h.read {
			replaced.Unread = 1
		}
		view.Rollout = progressOf(g, view.Settings, h, now)
	})
	view.Done = view.Done[:min(len(view.Done), maxReplacements)]
	view.Stats = view.stats(replaced)
	view.Plots = p.plots(r, []shardView{{Shard: shard}}, view)
	view.MayChange, view.Result = clientOf(r).MayChange() && group.LastKnown == nil, doneText(r.FormValue("done"))
	return p.renderLive(w, r, http.StatusOK, "group", fmt.Sprintf("Group %s of shard %s", name, shard), live, view)
}

// stats returns the numbers on top of the page. replaced describes the replacements of the last day.
func (v *groupView) stats(replaced statistics) []stat {
	g := v.Group
	note := fmt.Sprintf("%d actual", g.GetActualSize())
	if v.OnDemand > 0 {
		note += fmt.Sprintf(", and %d on demand", v.OnDemand)
	}
	if text := fleet.SparesText(g); text != "" {
		note += "; spares: " + text
	}
	return append([]stat{
		{"Healthy instances", fmt.Sprintf("%d / %d", g.GetHealthy(), g.GetSize()), note,
			toneOf(g.GetHealthy() < g.GetSize(), "bad"), groupBar(g)},
		{"Outdated", fmt.Sprint(g.GetOutdated()), "instances with an older configuration",
			toneOf(g.GetOutdated() > 0, "warn"), nil},
		{"Alerts", fmt.Sprint(len(v.Alerts)), "active", toneOf(len(v.Alerts) > 0, "bad"), nil},
	}, replacementStats(replaced)...)
}

// overrideOf returns the settings of a static group that operators changed.
func overrideOf(g *nstancev1.GroupStatus, now time.Time) (settings []setting) {
	for _, o := range g.GetOverrides() {
		settings = append(settings, setting{o.GetPath(), o.GetValue(), fleet.OverrideText(o, now)})
	}
	if len(settings) > 0 {
		return settings
	}
	// The server may be an earlier one, which does not say who set what.
	var own map[string]json.RawMessage
	if !g.GetIsStatic() || json.Unmarshal([]byte(g.GetSpecJson()), &own) != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		settings = append(settings, setting{Name: name, Value: string(own[name])})
	}
	return settings
}

// count counts the instances of each class, lays out the squares, and selects the instances of one page.
func (v *groupView) count(shard string, instances []*nstancev1.InstanceStatus, page string) {
	v.Total = len(instances)
	counts := map[string]int{}
	var all, found []row
	for _, i := range instances {
		r := row{shard, classOf(i), i}
		counts[r.Class]++
		if r.Outdated() {
			v.Outdated++
		}
		if i.GetOnDemand() {
			v.OnDemand++
		}
		all = append(all, r)
	}
	for _, class := range classes {
		if counts[class] > 0 || class == v.List.Class {
			v.Classes = append(v.Classes, count{class, class, counts[class]})
		}
	}
	slices.SortStableFunc(all, byAttention)
	v.layOut(all)
	for _, r := range all {
		if v.List.selects(r) {
			found = append(found, r)
		}
	}
	v.List.sort(found)
	v.Found = len(found)
	v.Pages = max(1, (len(found)+instancesPerPage-1)/instancesPerPage)
	v.Page, _ = strconv.Atoi(page) // 0 if it is not a number
	v.Page = min(max(1, v.Page), v.Pages)
	from := (v.Page - 1) * instancesPerPage
	v.Instances = found[from:min(from+instancesPerPage, len(found))]
}

// byAttention sorts instances that need attention first, and outdated ones before the others.
func byAttention(a, b row) int {
	outdated := func(r row) int {
		if r.Outdated() {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(slices.Index(classes, a.Class), slices.Index(classes, b.Class)),
		cmp.Compare(outdated(a), outdated(b)))
}

// layOut gives squares to instances, which are sorted by attention.
func (v *groupView) layOut(all []row) {
	if v.Squares = all; len(all) <= maxSquares {
		return
	}
	calm, _ := slices.BinarySearchFunc(all, row{Class: "healthy", InstanceStatus: &nstancev1.InstanceStatus{
		InfraDrift: true}}, byAttention)
	calm = min(calm, maxSquares)
	v.Squares = all[:calm]
	// The squares of a run of equal instances fill up to three rectangles: the rest of a line, whole lines, and the
	// beginning of a line.
	for from := calm; from < len(all); {
		to := from
		for to < len(all) && byAttention(all[from], all[to]) == 0 {
			to++
		}
		marks, name := all[from].Marks(), all[from].Class
		if all[from].Outdated() {
			name += ", outdated"
		}
		title := fmt.Sprintf("%d × %s", to-from, name)
		for at := from - calm; at < to-calm; {
			column := at % squaresPerLine
			width, height := min(squaresPerLine-column, to-calm-at), 1
			if column == 0 && width == squaresPerLine {
				height = (to - calm - at) / squaresPerLine
			}
			v.More = append(v.More, shape{Class: marks, Title: title, X: float64(column),
				Y: float64(at / squaresPerLine), Width: float64(width), Height: float64(height)})
			at += width * height
		}
		from = to
	}
	v.Lines = (len(all) - calm + squaresPerLine - 1) / squaresPerLine
}

// selects reports whether the filter selects an instance.
func (f listFilter) selects(r row) bool {
	if f.Class != "" && f.Class != r.Class && (f.Class != "outdated" || !r.Outdated()) {
		return false
	}
	if f.Search == "" {
		return true
	}
	text := strings.Join([]string{r.GetInstanceId(), r.GetIpv4(), r.GetIpv6(), r.GetHostname(), r.GetProviderId(),
		r.GetInstanceType(), r.GetZone(), r.GetState(), r.GetHealthMessage(), r.GetDeleteReason(), r.GetImage()}, "\n")
	return strings.Contains(strings.ToLower(text), strings.ToLower(f.Search))
}

// sort sorts instances. They are already sorted by attention.
func (f listFilter) sort(rows []row) {
	name, down := strings.CutPrefix(f.Sort, "-")
	compare := map[string]func(a, b row) int{
		"instance": func(a, b row) int { return strings.Compare(a.GetInstanceId(), b.GetInstanceId()) },
		"type":     func(a, b row) int { return strings.Compare(a.GetInstanceType(), b.GetInstanceType()) },
		"address":  func(a, b row) int { return strings.Compare(a.Address(), b.Address()) },
		"created":  func(a, b row) int { return fleet.Time(a.GetCreatedAt()).Compare(fleet.Time(b.GetCreatedAt())) },
	}[name]
	if compare == nil {
		return
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		if down {
			return compare(b, a)
		}
		return compare(a, b)
	})
}

// Address returns an IP address of the instance.
func (r row) Address() string { return cmp.Or(r.GetIpv4(), r.GetIpv6()) }

// column is a column of the list. URL is the address of the page with the list sorted by this column. Aria is the order
// for screen readers, and Class says how important the column is.
type column struct{ Title, URL, Aria, Class string }

// Columns returns the columns of the list of instances.
func (v *groupView) Columns() (columns []column) {
	for _, c := range [][3]string{{"instance", "Instance", ""}, {"", "Health", ""}, {"-", "State", "minor"},
		{"type", "Type", "minor"}, {"address", "Address", "middle"}, {"created", "Created", ""},
		{"-", "Last report", "minor"}} {
		name, next, aria := c[0], v.List, ""
		switch {
		case name == "-": // the list cannot be sorted by it
			columns = append(columns, column{Title: c[1], Class: c[2]})
			continue
		case next.Sort == name:
			aria = "ascending"
			if next.Sort = "-" + name; name == "" {
				next.Sort = ""
			}
		case next.Sort == "-"+name:
			aria, next.Sort = "descending", name
		default:
			next.Sort = name
		}
		columns = append(columns, column{c[1], next.url(1), aria, c[2]})
	}
	return columns
}

// url returns the address of one page of the list.
func (f listFilter) url(page int) string {
	query := queryOf(map[string]string{"class": f.Class, "search": f.Search, "sort": f.Sort, "period": f.Period})
	if page > 1 {
		query.Set("page", strconv.Itoa(page))
	}
	return "?" + query.Encode() + "#instances"
}

// PageURL returns the address of one page of the list.
func (v *groupView) PageURL(page int) string { return v.List.url(page) }

// ClassURL returns the address of the page that lists only the instances of a class.
func (v *groupView) ClassURL(class string) string {
	f := v.List
	f.Class = class
	return f.url(1)
}

// Previous returns the number of the previous page, and 0 if there is none.
func (v *groupView) Previous() int { return v.Page - 1 }

// Next returns the number of the next page, and 0 if there is none.
func (v *groupView) Next() int {
	if v.Page == v.Pages {
		return 0
	}
	return v.Page + 1
}

// formView describes the form of an action on a group.
type formView struct {
	*groupView
	Action, Title, About string
}

// Forms returns the actions that apply to the group now.
func (v *groupView) Forms() []formView {
	stop := formView{v, "pause", "Stop replacing outdated instances", "Outdated instances stay until the rollout " +
		"goes on. Lost and unhealthy ones are still replaced."}
	resume := formView{v, "resume", "Go on replacing outdated instances", "Ends a pause, and starts a halted rollout " +
		"again."}
	roll := formView{v, "roll", "Roll all instances", "Replaces every instance of the group, as after a change of " +
		"its configuration."}
	scale := formView{v, "scale", "Scale", "Changes the number of instances of this group in this shard. Now it is " +
		fmt.Sprint(v.Group.GetSize()) + "."}
	forms := []formView{stop, scale, roll}
	switch {
	case v.Group.GetDeleting():
		return nil
	case v.Group.GetPaused():
		forms = []formView{resume, scale, roll}
	case v.Group.GetHalted() != nil:
		forms = []formView{stop, resume, scale, roll}
	}
	if fields := v.overridden(); len(fields) > 0 {
		forms = append(forms, formView{v, "reset", "Reset to the configuration", "Gives the group the values of the " +
			"configuration again: " + strings.Join(fields, ", ") + "."})
	}
	return forms
}

// overridden describes what a reset of the group changes, such as "size 4 → 6".
func (v *groupView) overridden() (fields []string) {
	for _, o := range v.Group.GetOverrides() {
		if o.GetPath() != "rollout.revision" {
			fields = append(fields, fmt.Sprintf("%s %s → %s", o.GetPath(), o.GetValue(),
				cmp.Or(o.GetConfigured(), "none")))
		}
	}
	return fields
}

func countRules(verdicts []*nstancev1.InstanceVerdict) (rules []ruleCount) {
	counts := map[ruleCount]int{}
	for _, v := range verdicts {
		counts[ruleCount{Rule: v.GetRule(), Name: v.GetRuleName()}]++
	}
	for rule, n := range counts {
		rule.Count = n
		rules = append(rules, rule)
	}
	slices.SortFunc(rules, func(a, b ruleCount) int { return cmp.Compare(a.Rule, b.Rule) })
	return rules
}

// progressOf returns the progress of a group's rollout, or nil if there is none.
func progressOf(g *nstancev1.GroupStatus, settings config.GroupSpec, h *history, now time.Time) *rolloutView {
	outdated, waits := g.GetOutdated(), g.GetRolloutWaits()
	if outdated == 0 && waits == "" {
		return nil
	}
	total := max(g.GetActualSize(), outdated)
	v := &rolloutView{Done: total - outdated, Total: total, Paused: g.GetPaused(), Waits: waits, Surge: 1}
	if settings.MaxSurge != nil {
		v.Surge = max(1, *settings.MaxSurge)
	}
	if settings.Rollout != nil && settings.Rollout.MaxUnavailable > 0 {
		v.Surge = settings.Rollout.MaxUnavailable
	}
	v.Waves = (int(outdated) + v.Surge - 1) / v.Surge
	for _, r := range h.underWay(g.GetGroup(), now) {
		if slices.Contains(rolloutCauses, r.Cause) {
			v.Running++
		}
	}
	return v
}
