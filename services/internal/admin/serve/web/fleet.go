package web

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// fleetView shows shards: all of them, or the only one that the field Shard names.
type fleetView struct {
	Shard  string
	Shards []shardView
	Groups []groupRow
	Alerts []alert
	Says   verdict
	Stats  []stat
	Plots  plotsView
}

// Unanswered reports whether a shard does not answer, so that its groups are not known.
func (v fleetView) Unanswered() bool {
	return slices.ContainsFunc(v.Shards, func(s shardView) bool { return s.Err != nil })
}

// stat is a number on top of a page. Note explains it. Tone is good, warn, bad or empty.
type stat struct {
	Name, Value, Note, Tone string
	Bar                     []segment
}

// shardView is one shard with its groups.
type shardView struct {
	Shard  string
	Err    *problem
	Status *nstancev1.GetShardStatusResponse
	Groups []*nstancev1.GroupStatus
	// Desired, Actual and Healthy are sums over the shard's groups.
	Desired, Actual, Healthy uint32
	Alerts                   []alert
	Replacements             statistics
	// LostSince is when the shard stopped answering. Lock is the election lock of a shard that does not answer. It is
	// nil if the shard answers or if the page cannot read the bucket.
	LostSince time.Time
	Lock      *Lock
	// LastKnown says that the groups are what the bucket says. It is empty if the leader answers.
	LastKnown string
}

// groupRow is one group of a shard in a list.
type groupRow struct {
	Shard string
	*nstancev1.GroupStatus
	Bar []segment
	// Spark is a small plot of the group's size during the last day.
	Spark        []shape
	Replacements statistics
	Tone, Says   string
}

// verdict says in words how the shards are. Tone is that of the worst sentence.
type verdict struct {
	Tone      string
	Sentences []sentence
}

// sentence is a part of a verdict. Subject has the address URL.
type sentence struct{ Tone, Subject, URL, Text string }

// maxSentences is the largest number of problems that a verdict lists.
const maxSentences = 8

func (p *page) showFleet(w http.ResponseWriter, r *http.Request) error {
	live := p.liveURL(nil)
	view := p.fleetOf(r, p.Fleet.Shards())
	return p.renderLive(w, r, http.StatusOK, "fleet", "Fleet", live, view)
}

func (p *page) showShard(w http.ResponseWriter, r *http.Request) error {
	shard, err := p.shardOf(r)
	if err != nil {
		return err
	}
	live := p.liveURL(url.Values{"shard": {shard}})
	view := p.fleetOf(r, []string{shard})
	view.Shard = shard
	return p.renderLive(w, r, http.StatusOK, "shard", "Shard "+shard, live, view)
}

// fleetOf returns the view of the named shards.
func (p *page) fleetOf(r *http.Request, names []string) fleetView {
	v := fleetView{Shards: p.shards(r, names)}
	now := p.Now()
	var replaced []*replacement
	unread := 0
	for i := range v.Shards {
		s := &v.Shards[i]
		v.Alerts = append(v.Alerts, s.Alerts...)
		p.hub.read(s.Shard, func(h *history) {
			done := h.replacements("", now.Add(-day))
			s.Replacements, replaced = newStatistics(done), append(replaced, done...)
			if !h.read {
				unread++
			}
			for _, g := range s.Groups {
				row := groupRow{Shard: s.Shard, GroupStatus: g, Bar: groupBar(g),
					Replacements: newStatistics(h.replacements(g.GetGroup(), now.Add(-day)))}
				row.Spark, _ = sizeShapes(append(slices.Clone(h.sizes[g.GetGroup()]), presentSize(g, now)),
					now.Add(-day), now, sparkColumns)
				if row.Tone, row.Says = groupState(g); s.LastKnown != "" {
					row.Tone, row.Says = "idle", s.LastKnown
				}
				v.Groups = append(v.Groups, row)
			}
		})
	}
	slices.SortStableFunc(v.Groups, func(a, b groupRow) int { return cmp.Compare(rank(a.Tone), rank(b.Tone)) })
	all := newStatistics(replaced)
	all.Unread = unread
	v.Says = v.judge(all)
	v.Stats = v.stats(all)
	v.Plots = p.plots(r, v.Shards, nil)
	return v
}

// lastKnown describes the failure of a shard's leader to answer. If there is an answer all the same, it says what the
// answer is.
func lastKnown(o fleet.Outcome) *problem {
	view := errorView(o.Err)
	if o.LastKnown != nil {
		view.Message += ". What is shown is " + lastKnownText(*o.LastKnown) + "."
	}
	return view
}

func lastKnownText(at time.Time) string {
	return "last known, from the bucket, " + at.UTC().Format("2006-01-02 15:04:05")
}

// groupBar shows how many of the instances that a group should have are healthy, are not healthy, and are missing.
func groupBar(g *nstancev1.GroupStatus) []segment {
	healthy, actual, size := int(g.GetHealthy()), int(g.GetActualSize()), int(g.GetSize())
	return segments(count{"healthy", "healthy", healthy}, count{"unhealthy", "not healthy", max(0, actual-healthy)},
		count{"missing", "missing", max(0, size-actual)})
}

func presentSize(g *nstancev1.GroupStatus, now time.Time) sample {
	return sample{now, g.GetSize(), g.GetActualSize(), g.GetHealthy()}
}

// rank sorts tones: what needs attention comes first.
func rank(tone string) int { return slices.Index([]string{"bad", "warn", "idle", "good"}, tone) }

// groupState says in a few words how a group is.
func groupState(g *nstancev1.GroupStatus) (tone, says string) {
	var parts []string
	if g.GetDeleting() {
		tone, parts = "warn", append(parts, "is being deleted")
	}
	short := ""
	switch lacks, sick := int(g.GetSize())-int(g.GetActualSize()), g.GetActualSize()-min(g.GetActualSize(),
		g.GetHealthy()); {
	case lacks > 0:
		tone, short = "bad", fmt.Sprintf("lacks %d", lacks)
	case sick > 0:
		tone, short = "warn", fmt.Sprintf("%d not healthy", sick)
	}
	why := fleet.WaitText(g)
	if why != "" {
		tone = cmp.Or(tone, "warn")
	}
	if short != "" && why != "" {
		short += ": "
	}
	if short += why; short != "" {
		parts = append(parts, short)
	}
	if n := g.GetOutdated(); n > 0 {
		tone, parts = cmp.Or(tone, "idle"), append(parts, fmt.Sprintf("%d of %d outdated", n, g.GetActualSize()))
	}
	switch {
	case g.GetHalted() != nil:
		tone, parts = "bad", append(parts, g.GetHalted().GetMessage())
	case g.GetPaused():
		tone, parts = cmp.Or(tone, "warn"), append(parts, "the rollout is paused")
	case g.GetRolloutWaits() != "":
		tone = cmp.Or(tone, "warn")
	}
	if len(parts) == 0 {
		return "good", "at its size, and all are healthy"
	}
	return tone, strings.Join(parts, "; ")
}

// judge returns the verdict. replaced describes the replacements of the last day.
func (v *fleetView) judge(replaced statistics) verdict {
	var says verdict
	add := func(tone, subject, url, text string) {
		says.Sentences = append(says.Sentences, sentence{tone, subject, url, text})
	}
	for _, s := range v.Shards {
		if s.Err != nil {
			text := "does not answer: " + s.Err.Message
			if s.Lock != nil {
				text += "; " + s.Lock.Waits
			}
			add("bad", s.Shard, shardPath(s.Shard), text)
		}
	}
	for _, s := range v.Shards {
		if s.Err != nil {
			continue
		}
		if s.Status.GetRefusedEtag() != "" {
			add("bad", s.Shard, Path+"config#c-"+url.PathEscape(s.Shard), "refuses the newest configuration")
		}
		waits := s.Status.GetConfigWaits()
		if waits != "" {
			add("warn", s.Shard, Path+"config#c-"+url.PathEscape(s.Shard),
				"restarts its servers for a new configuration: "+waits)
		}
		if s.Status.GetHeirId() == "" && waits == "" {
			text := "has no heir: no standby takes over if its leader fails"
			if len(s.Status.GetStandbyIds()) > 0 {
				text = "has a standby, but no heir yet: if its leader fails now, the standby waits for the end of " +
					"the lease"
			}
			add("warn", s.Shard, shardPath(s.Shard), text)
		}
	}
	for _, g := range v.Groups {
		if g.Tone == "bad" || g.Tone == "warn" {
			add(g.Tone, g.GetGroup(), groupPath(g.Shard, g.GetGroup()), "in "+g.Shard+": "+g.Says)
		}
	}
	slices.SortStableFunc(says.Sentences, func(a, b sentence) int { return cmp.Compare(rank(a.Tone), rank(b.Tone)) })
	if n := len(says.Sentences); n > 0 {
		if says.Tone = says.Sentences[0].Tone; n > maxSentences {
			says.Sentences = says.Sentences[:maxSentences]
			add("idle", "", "", fmt.Sprintf("%d more, in the lists below", n-maxSentences))
		}
		return says
	}
	text := fmt.Sprintf("All %d shards are fine.", len(v.Shards))
	if len(v.Shards) == 1 {
		text = "Shard " + v.Shards[0].Shard + " is fine."
	}
	if len(v.Alerts) > 0 {
		says.Tone, text = "warn", fmt.Sprintf("All groups have their size, but there is %s.", alertsText(v.Alerts))
	}
	says.Tone = cmp.Or(says.Tone, "good")
	if replaced.Unread == 0 {
		text += " " + countedOr(replaced.Count, "No replacement", "replacement") + " in 24 h."
	}
	add(says.Tone, "", "", text)
	return says
}

func countedOr(n int, none, noun string) string {
	if n == 0 {
		return none
	}
	return fleet.Count(n, noun)
}

func alertsText(alerts []alert) string {
	if len(alerts) == 1 {
		return "an alert"
	}
	return fleet.Count(len(alerts), "alert")
}

// stats returns the numbers on top of the page.
func (v *fleetView) stats(replaced statistics) []stat {
	sum := &nstancev1.GroupStatus{}
	answering, outdated := 0, uint32(0)
	for _, s := range v.Shards {
		sum.Size, sum.ActualSize, sum.Healthy = sum.Size+s.Desired, sum.ActualSize+s.Actual, sum.Healthy+s.Healthy
		if s.Err == nil {
			answering++
		}
		for _, g := range s.Groups {
			outdated += g.GetOutdated()
		}
	}
	tone := "good"
	if sum.Healthy < sum.Size {
		tone = "bad"
	}
	unseen := ""
	if lost := len(v.Shards) - answering; lost > 0 {
		unseen = "; " + fleet.Count(lost, "shard") + " not counted"
	}
	stats := []stat{{"Healthy instances", fmt.Sprintf("%d / %d", sum.Healthy, sum.Size),
		fmt.Sprintf("%d actual%s", sum.ActualSize, unseen), tone, groupBar(sum)}}
	if len(v.Shards) > 1 {
		stats = append(stats, stat{"Shards", fmt.Sprintf("%d / %d", answering, len(v.Shards)),
			"with a leader that answers", toneOf(answering < len(v.Shards), "bad"), nil})
	} else if s := v.Shards[0].Status; v.Shards[0].Err == nil {
		stats = append(stats, stat{"Leader", s.GetLeaderId(), fmt.Sprintf("term %d, lease left: %s", s.GetTerm(),
			lease(s)), "good", nil}, stat{"Heir", cmp.Or(s.GetHeirId(), "none"), fleet.Count(len(s.GetStandbyIds()),
			"server") + " on standby", toneOf(s.GetHeirId() == "", "warn"), nil})
	}
	stats = append(stats,
		stat{"Alerts", fmt.Sprint(len(v.Alerts)), "active" + unseen, toneOf(len(v.Alerts) > 0, "bad"), nil},
		stat{"Outdated", fmt.Sprint(outdated), "instances with an older configuration", "", nil})
	return append(stats, replacementStats(replaced)...)
}

// replacementStats returns the numbers about the replacements of the last day.
func replacementStats(s statistics) []stat {
	note := "in 24 h"
	if s.Unread > 0 {
		note += ", as far as the journals are read"
	}
	if s.Count == 0 {
		value := "0"
		if s.Unread > 0 {
			value = "unknown"
		}
		return []stat{{"Replacements", value, note, "", nil}}
	}
	return []stat{{"Replacements", fmt.Sprint(s.Count), note, "", nil},
		{"Time to replace", took(s.P50), "median; 99 % within " + took(s.P99), "", nil}}
}

// toneOf returns the tone `otherwise` if something is wrong.
func toneOf(wrong bool, otherwise string) string {
	if wrong {
		return otherwise
	}
	return "good"
}

// shards queries the named shards and returns one view for each of them.
func (p *page) shards(r *http.Request, names []string) []shardView {
	begun := start(p, r, names, fleet.Client.GetShardStatus, &nstancev1.GetShardStatusRequest{})
	groups := fleet.Call(r.Context(), p.Fleet, names, fleet.Client.ListGroups, &nstancev1.ListGroupsRequest{})
	statuses := begun()
	views := make([]shardView, len(names))
	for i, name := range names {
		view := shardView{Shard: name, Status: statuses[i].Message, Groups: groups[i].Message.GetGroups(),
			Alerts: p.hub.alerts(name, "")}
		if groups[i].LastKnown != nil {
			view.LastKnown = lastKnownText(*groups[i].LastKnown)
		}
		for _, g := range view.Groups {
			if view.LastKnown != "" {
				break // not counted
			}
			view.Desired += g.GetSize()
			view.Actual += g.GetActualSize()
			view.Healthy += g.GetHealthy()
		}
		for _, err := range []*fleet.Error{statuses[i].Err, groups[i].Err} {
			if err != nil {
				view.Err, view.LostSince = errorView(err), p.hub.lost(name)
			}
		}
		views[i] = view
	}
	if p.Bucket == nil {
		return views
	}
	var wg sync.WaitGroup
	for i := range views {
		if view := &views[i]; view.Err != nil && view.Err.Unavailable {
			wg.Go(func() {
				lock := p.Bucket.Lock(r.Context(), view.Shard)
				view.Lock = &lock
			})
		}
	}
	wg.Wait()
	return views
}
