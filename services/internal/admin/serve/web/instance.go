package web

import (
	"cmp"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// consoleLines is how many lines of a console the page shows.
const consoleLines = 200

// instanceView shows one instance and its life.
type instanceView struct {
	Shard string
	row
	// Missing means that the leader does not know the instance any more. The journal may still have its events.
	Missing *problem
	// Known is set if no leader answers, and the bucket does.
	Known *problem
	// Predecessor is the instance that this instance replaced, and Successor the instance that replaced this one.
	Predecessor, Successor string
	Steps                  []step
	Verdict                *nstancev1.InstanceVerdict
	Actions                []*nstancev1.PlannedAction
	// Console is the end of the VM's console, or ConsoleErr why it cannot be read. They are read if the person asks for
	// them, or if the agent is late to register, and if the person may read consoles.
	Console    *nstancev1.GetInstanceConsoleResponse
	ConsoleErr *problem
	// MayChange means that the page has a form. Confirm is the text that the person must type. Done is the result of
	// the form that was sent last.
	MayChange     bool
	Confirm, Done string
}

// step is one event in the life of an instance.
type step struct {
	*nstancev1.JournalEvent
	// Name is the kind of the event, in words for people.
	Name string
	// Of is empty if the event is about the page's instance. Otherwise it is the ID of the predecessor or successor
	// that the event is about.
	Of string
	// Took is the time since the previous step.
	Took time.Duration
	// First means that this is the first step.
	First bool
	// X and Width are the place of the step in the picture of the whole life, in thousandths.
	X, Width float64
}

func (p *page) showInstance(w http.ResponseWriter, r *http.Request) error {
	shard, id, err := p.instanceOf(r)
	if err != nil {
		return err
	}
	live := p.liveURL(url.Values{"shard": {shard}, "instance": {id.String()}})
	only := []string{shard}
	planned := start(p, r, only, fleet.Client.ExplainGroup, &nstancev1.ExplainGroupRequest{InstanceId: id.String()})
	happened := start(p, r, only, fleet.Client.ListEvents, &nstancev1.ListEventsRequest{
		Filter: &nstancev1.EventFilter{InstanceId: id.String()}})
	instance := fleet.Call(r.Context(), p.Fleet, only, fleet.Client.GetInstanceStatus,
		&nstancev1.GetInstanceStatusRequest{InstanceId: id.String()})[0]
	plan, life := planned()[0], happened()[0].Message.GetEvents()
	view := instanceView{Shard: shard, MayChange: clientOf(r).MayChange(), Confirm: lastCharacters(id),
		Done: doneText(r.FormValue("done"))}
	switch i := instance.Message.GetInstance(); {
	case instance.LastKnown != nil:
		view.Known, view.row, view.MayChange = lastKnown(instance.Outcome), row{shard, classOf(i), i}, false
	case instance.Err == nil:
		view.row = row{shard, classOf(i), i}
	case len(life) == 0:
		return instance.Err
	default:
		view.Missing = errorView(instance.Err)
		view.row = row{shard, "unknown", &nstancev1.InstanceStatus{InstanceId: id.String(), Group: life[0].GetGroup()}}
	}
	if plan.Err == nil {
		view.Actions, view.Verdict = plan.Message.GetActions(), plan.Message.GetInstances()[0]
	}
	if view.MayChange && view.Missing == nil && (view.Verdict.GetLate() || r.FormValue("console") != "") {
		console := fleet.Call(r.Context(), p.Fleet, only, fleet.Client.GetInstanceConsole,
			&nstancev1.GetInstanceConsoleRequest{InstanceId: id.String(), Lines: consoleLines})[0]
		if view.Console = console.Message; console.Err != nil {
			view.Console, view.ConsoleErr = nil, errorView(console.Err)
		}
	}
	p.addLife(r, &view, life)
	return p.renderLive(w, r, http.StatusOK, "instance", "Instance "+id.String(), live, view)
}

// instanceOf returns the shard and the instance in a request's path.
func (p *page) instanceOf(r *http.Request) (shard string, id ident.ID, err error) {
	if shard, err = p.shardOf(r); err != nil {
		return "", id, err
	}
	if id, err = ident.ParseID(r.PathValue("instance")); err != nil {
		return "", id, &httpError{http.StatusBadRequest, "instance: " + err.Error(), ""}
	}
	return shard, id, nil
}

// addLife adds the timeline: the instance's own events, the events that led to its predecessor's replacement, and the
// creation of its successor.
func (p *page) addLife(r *http.Request, view *instanceView, events []*nstancev1.JournalEvent) {
	for _, e := range events {
		view.Steps = append(view.Steps, step{JournalEvent: e, Name: stepName(e.GetKind())})
		if e.GetKind() == "instance_creating" {
			view.Predecessor = e.GetReplaces()
		}
	}
	history := func(filter *nstancev1.EventFilter) []*nstancev1.JournalEvent {
		return fleet.Call(r.Context(), p.Fleet, []string{view.row.Shard}, fleet.Client.ListEvents,
			&nstancev1.ListEventsRequest{Filter: filter})[0].Message.GetEvents()
	}
	if view.Predecessor != "" {
		for _, e := range history(&nstancev1.EventFilter{InstanceId: view.Predecessor}) {
			switch e.GetKind() {
			case "instance_lost", "instance_unhealthy", "instance_notice", "instance_recommendation",
				"instance_maintenance", "instance_pending_deletion":
				view.Steps = append(view.Steps, step{JournalEvent: e, Name: stepName(e.GetKind()),
					Of: view.Predecessor})
			}
		}
	}
	if len(events) > 0 && view.GetGroup() != "" {
		for _, e := range history(&nstancev1.EventFilter{Group: view.GetGroup(), Kinds: []string{"instance_creating"},
			Since: events[0].GetAt()}) {
			if e.GetReplaces() == view.GetInstanceId() {
				view.Successor = e.GetInstanceId()
				view.Steps = append(view.Steps, step{JournalEvent: e, Name: stepName(e.GetKind()),
					Of: e.GetInstanceId()})
			}
		}
	}
	slices.SortStableFunc(view.Steps, func(a, b step) int {
		return cmp.Or(fleet.Time(a.GetAt()).Compare(fleet.Time(b.GetAt())), cmp.Compare(a.GetTerm(), b.GetTerm()))
	})
	placeSteps(view.Steps)
}

// placeSteps computes the durations of steps, and their places in the picture. The scale of the picture is that of
// square roots, so that short steps are visible beside long ones.
func placeSteps(steps []step) {
	total := 0.0
	for i := range steps {
		if steps[i].First = i == 0; i > 0 {
			steps[i].Took = fleet.Time(steps[i].GetAt()).Sub(fleet.Time(steps[i-1].GetAt()))
		}
		steps[i].Width = math.Sqrt(steps[i].Took.Seconds())
		total += steps[i].Width
	}
	x := 0.0
	for i := range steps {
		steps[i].X, steps[i].Width = 1000*x/max(total, 1e-9), 1000*steps[i].Width/max(total, 1e-9)
		x += steps[i].Width * total / 1000
	}
}

// stepName returns the words for a kind of event in the life of an instance.
func stepName(kind string) string {
	switch kind {
	case "instance_creating":
		return "asked for"
	case "instance_created":
		return "created"
	case "instance_pending_deletion":
		return "decided: to be deleted"
	}
	return spaced(strings.TrimPrefix(kind, "instance_"))
}
