package web

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// instancesPerPage is the number of instances in one page of a group.
const instancesPerPage = 250

// groupView shows one group of a shard.
type groupView struct {
	Shard string
	Group *nstancev1.GroupStatus
	// Classes count the group's instances by class. The page shows them as a bar.
	Classes []count
	Total   int
	// Class selects the instances that are listed. If it is empty, all are listed.
	Class     string
	Instances []row
	// Page counts from 1.
	Page, Pages int
	Plan        *nstancev1.ExplainGroupResponse
	PlanErr     *problem
	// Rules count the instances by the planning rule that classifies them.
	Rules        []ruleCount
	Alerts       []alert
	Replacements statistics
	Rollout      *rolloutView
	// MayChange means that the person may change the group, so that the page has forms. Done is the result of the form
	// that was sent last.
	MayChange bool
	Done      string
}

// count is a number of instances of a class.
type count struct {
	Class string
	Count int
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
	// ETA is the expected time until the rollout ends. Zero means unknown.
	ETA time.Duration
}

// row is one instance in a list.
type row struct {
	Shard string
	Class string
	*nstancev1.InstanceStatus
}

// classes are the classes of instances. Classes that need attention come first.
var classes = []string{"unhealthy", "silent", "unregistered", "unknown", "stopping", "drifted", "healthy", "deleted"}

// classOf returns "deleted" for a deleted instance, and "drifted" for a healthy but outdated one. For other instances
// it returns their health.
func classOf(i *nstancev1.InstanceStatus) string {
	switch {
	case i.GetState() == "deleted":
		return "deleted"
	case i.GetHealth() == "healthy" && (i.GetInfraDrift() || i.GetRuntimeDrift()):
		return "drifted"
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
	var groups []fleet.Answer[*nstancev1.ListGroupsResponse]
	var instances []fleet.Answer[*nstancev1.ListInstancesResponse]
	var plans []fleet.Answer[*nstancev1.ExplainGroupResponse]
	var wg sync.WaitGroup
	wg.Go(func() {
		groups = fleet.Call(r.Context(), p.Fleet, only, fleet.Client.ListGroups,
			&nstancev1.ListGroupsRequest{Group: name})
	})
	wg.Go(func() {
		instances = fleet.Call(r.Context(), p.Fleet, only, fleet.Client.ListInstances,
			&nstancev1.ListInstancesRequest{Group: name})
	})
	wg.Go(func() {
		plans = fleet.Call(r.Context(), p.Fleet, only, fleet.Client.ExplainGroup,
			&nstancev1.ExplainGroupRequest{Group: name})
	})
	wg.Wait()
	for _, err := range []*fleet.Error{groups[0].Err, instances[0].Err} {
		if err != nil {
			return err
		}
	}
	view := &groupView{Shard: shard, Group: groups[0].Message.GetGroups()[0], Alerts: p.hub.alerts(shard, name),
		Replacements: p.hub.statistics(shard, name), Class: r.FormValue("class")}
	view.list(shard, instances[0].Message.GetInstances(), r.FormValue("page"))
	if err := plans[0].Err; err != nil {
		problem := errorView(err)
		view.PlanErr = &problem
	} else {
		view.Plan = plans[0].Message
		view.Rules = countRules(view.Plan.GetInstances())
	}
	view.MayChange, view.Done = clientOf(r).MayChange(), doneText(r.FormValue("done"))
	view.Rollout = progressOf(view.Group, view.Replacements)
	return p.renderLive(w, r, http.StatusOK, "group", fmt.Sprintf("Group %s of shard %s", name, shard), live, view)
}

// list counts the instances of each class, such as "silent", and selects the instances of one page. Instances that need
// attention come first.
func (v *groupView) list(shard string, instances []*nstancev1.InstanceStatus, page string) {
	v.Total = len(instances)
	counts := map[string]int{}
	var rows []row
	for _, i := range instances {
		class := classOf(i)
		counts[class]++
		if v.Class == "" || v.Class == class {
			rows = append(rows, row{shard, class, i})
		}
	}
	for _, class := range classes {
		if counts[class] > 0 || class == v.Class {
			v.Classes = append(v.Classes, count{class, counts[class]})
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Compare(slices.Index(classes, a.Class), slices.Index(classes, b.Class))
	})
	v.Pages = max(1, (len(rows)+instancesPerPage-1)/instancesPerPage)
	v.Page, _ = strconv.Atoi(page) // 0 if it is not a number
	v.Page = min(max(1, v.Page), v.Pages)
	from := (v.Page - 1) * instancesPerPage
	v.Instances = rows[from:min(from+instancesPerPage, len(rows))]
}

// PageURL returns the address of one page of the list.
func (v *groupView) PageURL(page int, class string) string {
	query := url.Values{}
	if page > 1 {
		query.Set("page", strconv.Itoa(page))
	}
	if class != "" {
		query.Set("class", class)
	}
	return "?" + query.Encode()
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
func progressOf(g *nstancev1.GroupStatus, s statistics) *rolloutView {
	outdated, waits := g.GetOutdated(), g.GetRolloutWaits()
	if outdated == 0 && !g.GetPaused() && waits == "" {
		return nil
	}
	total := max(g.GetActualSize(), outdated)
	v := &rolloutView{Done: total - outdated, Total: total, Paused: g.GetPaused(), Waits: waits}
	if !g.GetPaused() && waits == "" {
		v.ETA = s.Pace * time.Duration(outdated)
	}
	return v
}
