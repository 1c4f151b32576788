package server

import (
	"context"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/journal"
	"github.com/nstance-kit/nstance/services/internal/server/serve/operatorapi"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// failingRemover returns an error from its first calls. failures is the number of these calls.
type failingRemover struct {
	failures, calls int
	err             error
}

func (r *failingRemover) RemoveUserdata(context.Context, infra.Owner, ident.ID) error {
	if r.calls++; r.calls <= r.failures {
		return r.err
	}
	return nil
}

func TestRemovalOfUserdataIsTriedAgain(t *testing.T) {
	for name, test := range map[string]struct {
		remover failingRemover
		calls   int
		fails   bool
	}{
		"at once":        {failingRemover{}, 1, false},
		"after failures": {failingRemover{failures: 3, err: infra.Throttled}, 4, false},
		"gone":           {failingRemover{failures: 9, err: infra.NotFound}, 1, false},
		"never":          {failingRemover{failures: 9, err: infra.Denied}, removeUserdataTries, true},
	} {
		slept := 0
		env := tasks.Env{Sleep: func(context.Context, time.Duration) error { slept++; return nil }}
		err := removeUserdata(t.Context(), env, &test.remover, infra.Owner{}, ident.ID{})
		if (err != nil) != test.fails || test.remover.calls != test.calls || slept < test.calls-1 {
			t.Errorf("%s: %v after %d calls and %d pauses", name, err, test.remover.calls, slept)
		}
	}
}

func TestUserdataIsRemovedWhenAnAgentRegisters(t *testing.T) {
	var removed []shardstate.InstanceEventType
	for _, typ := range []shardstate.InstanceEventType{shardstate.EventCreated, shardstate.EventRegistered,
		shardstate.EventHealthy, shardstate.EventDeleted} {
		fanout := eventFanout{Events: operatorapi.NewEvents(), journal: journal.New(journal.Options{Now: time.Now}),
			forget: func(ident.ID) {}, removeUserdata: func(ident.ID) { removed = append(removed, typ) }}
		fanout.Instance(shardstate.InstanceEvent{Type: typ})
	}
	if len(removed) != 1 || removed[0] != shardstate.EventRegistered {
		t.Errorf("removed after %v", removed)
	}
}
