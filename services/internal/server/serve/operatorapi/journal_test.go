package operatorapi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// listed waits until the journal has n events of a filter, and returns them as "kind group actor message".
func (f *testShard) listed(t *testing.T, filter *nstancev1.EventFilter, n int) []string {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		answer, err := f.ListEvents(t.Context(), &nstancev1.ListEventsRequest{Filter: filter})
		if err != nil {
			t.Fatal(err)
		}
		if len(answer.GetEvents()) >= n || time.Now().After(deadline) {
			var out []string
			for _, e := range answer.GetEvents() {
				out = append(out, strings.Join(strings.Fields(fmt.Sprint(e.GetKind(), " ", e.GetGroup(), " ",
					e.GetActor(), " ", e.GetMessage())), " "))
			}
			return out
		}
	}
}

// TestListEvents checks that changes by operators are in the journal with the operator as the actor, that filters and
// pages work, and that another tenant sees none of them.
func TestListEvents(t *testing.T) {
	w := newTestShard(t)
	w.scale(t, "fleet", 0)
	w.scale(t, "other", 0)
	if _, err := w.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Group: "fleet"}); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("group_changed fleet %s size 0, group_deleted fleet %[1]s", w.id)
	if have := strings.Join(w.listed(t, &nstancev1.EventFilter{Group: "fleet"}, 2), ", "); have != want {
		t.Errorf("events of the group: %s, want %s", have, want)
	}
	have := w.listed(t, &nstancev1.EventFilter{Kinds: []string{"group_deleted"}}, 1)
	if len(have) != 1 || !strings.HasPrefix(have[0], "group_deleted fleet") {
		t.Errorf("events of a kind: %q, want one", have)
	}
	if have := w.listed(t, &nstancev1.EventFilter{Since: timestamppb.New(w.Clock.Now().Add(time.Hour))},
		0); len(have) > 0 {
		t.Errorf("events of the future: %q", have)
	}

	var pages []int
	for request := (&nstancev1.ListEventsRequest{PageSize: 2}); ; {
		answer, err := w.ListEvents(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, len(answer.GetEvents()))
		if request.PageToken = answer.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	if fmt.Sprint(pages) != "[2 1]" {
		t.Errorf("pages of two: %v, want two pages with three events", pages)
	}

	answer, err := w.rival(t).ListEvents(t.Context(), &nstancev1.ListEventsRequest{})
	if err != nil || len(answer.GetEvents()) != 0 {
		t.Errorf("the other tenant sees %v, %v", answer.GetEvents(), err)
	}
}

// TestListEventsRefusals checks the errors of malformed requests.
func TestListEventsRefusals(t *testing.T) {
	w := newTestShard(t)
	for want, request := range map[string]*nstancev1.ListEventsRequest{
		"filter.group": {Filter: &nstancev1.EventFilter{Group: "A b"}},
		"instance_id":  {Filter: &nstancev1.EventFilter{InstanceId: "i-1"}},
		"filter.cause": {Filter: &nstancev1.EventFilter{Cause: "a\x00"}},
		"filter.kinds": {Filter: &nstancev1.EventFilter{Kinds: []string{"created"}}},
		"filter.kinds: has 20000": {Filter: &nstancev1.EventFilter{
			Kinds: slices.Repeat([]string{string(record.EventInstanceCreated)}, 20000)}},
		"page_token: \"7-\"":   {PageToken: "7-"},
		"page_token: \"7-1 \"": {PageToken: "7-1 "},
		"page_token: \"07-1\"": {PageToken: "07-1"},
	} {
		_, err := w.ListEvents(t.Context(), request)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want InvalidArgument with %q", err, want)
		}
	}
}

// TestFollowEvents checks that a client gets the stored events, and then each new event once. A client that gives the
// position of an event gets only the events after it.
func TestFollowEvents(t *testing.T) {
	w := newTestShard(t)
	add := func(n int) {
		w.api.Journal.Record(record.Event{Kind: record.EventInstanceCreated, Tenant: "prod", Message: fmt.Sprint(n)})
		w.api.Journal.Record(record.Event{Kind: record.EventInstanceCreated, Tenant: "rival", Message: "theirs"})
	}
	add(1)
	w.listed(t, nil, 1)
	follow := func(after string) func() *nstancev1.JournalEvent {
		stream, err := w.FollowEvents(t.Context(), &nstancev1.FollowEventsRequest{After: after})
		if err != nil {
			t.Fatal(err)
		}
		return func() *nstancev1.JournalEvent {
			answer, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			return answer.GetEvent()
		}
	}
	next := follow("")
	first := next()
	add(2)
	add(3)
	if have := first.GetMessage() + next().GetMessage() + next().GetMessage(); have != "123" {
		t.Errorf("messages %q, want 1, 2 and 3", have)
	}
	again := follow(first.GetPosition())
	if have := again().GetMessage() + again().GetMessage(); have != "23" {
		t.Errorf("messages after the first: %q, want 2 and 3", have)
	}
}

// TestFollowEventsOfASlowReader records many more events than the queue of a stream holds while the client reads none.
// A client that reads later must get every event once, in order.
func TestFollowEventsOfASlowReader(t *testing.T) {
	w := newTestShard(t)
	w.service.Tune(100, time.Millisecond, 20*time.Millisecond)
	const events = 1000
	stream, err := w.FollowEvents(t.Context(), &nstancev1.FollowEventsRequest{
		Filter: &nstancev1.EventFilter{Group: "slow"}})
	if err != nil {
		t.Fatal(err)
	}
	for n := range events {
		w.api.Journal.Record(record.Event{Kind: record.EventInstanceCreated, Tenant: "prod", Group: "slow",
			Message: fmt.Sprint(n, " ", strings.Repeat("x", 1000))})
		if n%200 == 0 {
			w.listed(t, &nstancev1.EventFilter{Group: "slow"}, n+1)
		}
	}
	for n := range events {
		answer, err := stream.Recv()
		if err != nil {
			t.Fatalf("event %d: %v", n, err)
		}
		if text, _, _ := strings.Cut(answer.GetEvent().GetMessage(), " "); text != fmt.Sprint(n) {
			t.Fatalf("event %s comes where %d is expected", text, n)
		}
	}
}
