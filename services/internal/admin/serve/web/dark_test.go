package web_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

// remembered answers calls with what the shard a of a site said before.
type remembered struct{ a *fleettest.Shard }

func (r *remembered) Answer(_ context.Context, _, _ string, request proto.Message) (proto.Message, time.Time, error) {
	at := fleettest.Now.Add(-time.Minute)
	switch request.(type) {
	case *nstancev1.ListGroupsRequest:
		return &nstancev1.ListGroupsResponse{Groups: r.a.Groups}, at, nil
	case *nstancev1.ListInstancesRequest:
		return &nstancev1.ListInstancesResponse{Instances: r.a.Instances}, at, nil
	case *nstancev1.GetInstanceStatusRequest:
		return &nstancev1.GetInstanceStatusResponse{Instance: r.a.Instances[0]}, at, nil
	case *nstancev1.ListEventsRequest:
		return &nstancev1.ListEventsResponse{Events: []*nstancev1.JournalEvent{{Kind: "instance_lost", Term: 3,
			Message: "the stream closed"}}}, at, nil
	}
	return nil, time.Time{}, nil
}

// TestPagesWithoutALeader checks that the pages of a shard without a leader show what is last known, say so, and have
// no forms.
func TestPagesWithoutALeader(t *testing.T) {
	before := new(remembered)
	s := newSiteKnowing(t, nil, before, "")
	before.a = s.a
	s.a.Do(func() { s.a.Before = func(string) error { return fleettest.NotLeader("a", "", "") } })
	const known = "last known, from the bucket, 2026-07-28 09:59:00"
	for path, want := range map[string]string{
		"/ui/":                        `<a href="/ui/shards/a/groups/workers">workers</a>`,
		"/ui/shards/a/groups/workers": "the shard has no leader",
		"/ui/shards/a/instances/" + s.a.Instances[0].GetInstanceId(): s.a.Instances[0].GetProviderId(),
		"/ui/events?shard=a": "the stream closed",
	} {
		text := s.text(t, path, 200)
		if !strings.Contains(text, known) || !strings.Contains(text, want) || strings.Contains(text, `method="post"`) {
			t.Errorf("%s: want %q in\n%s", path, want, text)
		}
	}
}
