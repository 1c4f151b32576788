package web

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// maxEvents is the largest number of events on a page. To see older events, a person chooses an earlier Until.
const maxEvents = 100

// eventsView shows the journals of shards, the newest event first.
type eventsView struct {
	Filter  eventFilter
	Shards  []string
	Kinds   []record.EventKind
	Periods []period
	Events  []entry
	Failed  []*problem
	// Earlier is the address of the page with older events; empty if there are none.
	Earlier string
}

// entry is one event of a shard.
type entry struct {
	Shard string
	*nstancev1.JournalEvent
}

// Anchor identifies the entry in a page.
func (e entry) Anchor() string { return "e-" + e.Shard + "-" + e.GetPosition() }

// Permalink returns the address of a page with this entry and the events of the hour before it. The entry remains the
// newest one on that page.
func (e entry) Permalink() string {
	at := fleet.Time(e.GetAt())
	query := url.Values{"shard": {e.Shard}, "until": {at.Add(time.Millisecond).Format(time.RFC3339Nano)},
		"since": {at.Add(-time.Hour).Format(time.RFC3339Nano)}}
	return Path + "events?" + query.Encode() + "#" + e.Anchor()
}

// eventFilter is the filter of a page. Its fields are the query parameters in the page's address.
type eventFilter struct {
	Shard, Group, Instance, Kind, Cause string
	// Period is how far back from now the shown events go, such as 1h. Since, if set, is the earliest time of the
	// events, instead of Period. Until, if set, is the latest time.
	Period, Since, Until string
}

// period is one of the periods that a person can choose in the form of the filter.
type period struct{ Value, Name string }

var periods = []period{{"15m", "15 minutes"}, {"1h", "hour"}, {"24h", "day"}, {"168h", "7 days"}, {"720h", "30 days"}}

func readFilter(query url.Values) eventFilter {
	f := eventFilter{query.Get("shard"), query.Get("group"), query.Get("instance"), query.Get("kind"),
		query.Get("cause"), query.Get("period"), query.Get("since"), query.Get("until")}
	if f.Period == "" && f.Since == "" {
		f.Period = "24h"
	}
	return f
}

// query returns the filter as query parameters of a page's address.
func (f eventFilter) query() url.Values {
	return queryOf(map[string]string{"shard": f.Shard, "group": f.Group, "instance": f.Instance, "kind": f.Kind,
		"cause": f.Cause, "period": f.Period, "since": f.Since, "until": f.Until})
}

// queryOf returns the parameters that are not empty.
func queryOf(parameters map[string]string) url.Values {
	query := url.Values{}
	for name, value := range parameters {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query
}

// journal converts the page's filter to a request for the shards' journals.
func (f eventFilter) journal(now time.Time) (*nstancev1.ListEventsRequest, error) {
	h := &nstancev1.EventFilter{Group: f.Group, InstanceId: f.Instance, Cause: f.Cause}
	request := &nstancev1.ListEventsRequest{Filter: h}
	if f.Kind != "" {
		h.Kinds = []string{f.Kind}
	}
	if f.Group != "" {
		if err := ident.ValidateName(f.Group); err != nil {
			return nil, badFilter("group", err)
		}
	}
	if f.Instance != "" {
		if _, err := ident.ParseID(f.Instance); err != nil {
			return nil, badFilter("instance", err)
		}
	}
	if f.Period != "" {
		d, err := time.ParseDuration(f.Period)
		if err != nil || d <= 0 {
			return nil, badFilter("period", fmt.Errorf("%q is no duration like 1h", f.Period))
		}
		h.Since = timestamppb.New(now.Add(-d))
	}
	for name, at := range map[string]struct {
		text string
		into **timestamppb.Timestamp
	}{"since": {f.Since, &h.Since}, "until": {f.Until, &request.Until}} {
		if at.text == "" {
			continue
		}
		parsed, err := time.Parse(time.RFC3339Nano, at.text)
		if err != nil {
			return nil, badFilter(name, fmt.Errorf("%q is no time like 2026-01-02T15:04:05Z", at.text))
		}
		*at.into = timestamppb.New(parsed)
	}
	return request, nil
}

func badFilter(name string, err error) error {
	return &httpError{http.StatusBadRequest, name + ": " + err.Error(), "Correct the filter."}
}

// matches reports whether the filter selects an event that has just happened. A filter with an end time (Until) selects
// no such event. The start time needs no check, because it is in the past.
func (f eventFilter) matches(shard string, e *nstancev1.JournalEvent) bool {
	return f.Until == "" && (f.Shard == "" || f.Shard == shard) && (f.Group == "" || f.Group == e.GetGroup()) &&
		(f.Instance == "" || f.Instance == e.GetInstanceId()) && (f.Kind == "" || f.Kind == e.GetKind()) &&
		(f.Cause == "" || f.Cause == e.GetCause())
}

func (p *page) showEvents(w http.ResponseWriter, r *http.Request) error {
	filter := readFilter(r.URL.Query())
	request, err := filter.journal(p.Now())
	if err != nil {
		return err
	}
	shards := p.Fleet.Shards()
	if filter.Shard != "" {
		if !slices.Contains(shards, filter.Shard) {
			return badFilter("shard", fmt.Errorf("there is no %q", filter.Shard))
		}
		shards = []string{filter.Shard}
	}
	live := ""
	if filter.Until == "" {
		query := filter.query()
		query.Set("events", "true")
		live = p.liveURL(query)
	}
	view := eventsView{Filter: filter, Shards: p.Fleet.Shards(), Kinds: record.EventKinds(), Periods: periods}
	for _, answer := range fleet.Call(r.Context(), p.Fleet, shards, fleet.Client.ListEvents, request) {
		if answer.Err != nil {
			view.Failed = append(view.Failed, lastKnown(answer.Outcome))
		}
		for _, e := range answer.Message.GetEvents() {
			view.Events = append(view.Events, entry{answer.Shard, e})
		}
	}
	slices.SortStableFunc(view.Events, func(a, b entry) int {
		return fleet.Time(a.GetAt()).Compare(fleet.Time(b.GetAt()))
	})
	slices.Reverse(view.Events)
	if len(view.Events) > maxEvents {
		filter.Until = fleet.Time(view.Events[maxEvents-1].GetAt()).Format(time.RFC3339Nano)
		filter.Since, filter.Period = fleet.Time(request.GetFilter().GetSince()).Format(time.RFC3339Nano), ""
		view.Events, view.Earlier = view.Events[:maxEvents], Path+"events?"+filter.query().Encode()
	}
	return p.renderLive(w, r, http.StatusOK, "events", strings.TrimSpace("Events "+filter.Group+filter.Instance),
		live, view)
}
