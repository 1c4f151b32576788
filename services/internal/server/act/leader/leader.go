package leader

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Records is the durable store of a shard's instances.
type Records interface {
	execute.Store
	// LoadInstances reads every instance record of the shard in parallel. It calls take for each record. Only one call
	// of take runs at a time.
	LoadInstances(ctx context.Context, take func(record.Instance, objstore.Token)) error
	// LoadUnseen is like LoadInstances, but skips records that the caller already has. It calls seen with the ID of
	// each record and with the version in the bucket's list. If seen returns true, it skips the record.
	LoadUnseen(ctx context.Context, seen func(ident.ID, objstore.Token) bool,
		take func(record.Instance, objstore.Token)) error
}

// Leader holds one term's state of the shard, and the components that plan and execute actions.
type Leader struct {
	State    *shardstate.State
	Executor *execute.Executor
	Asker    *shardstate.Asker
	Loop     *Loop

	records Records
	// listed is the time at which TakeOver asked the provider for its list. It is zero if the provider did not answer.
	listed time.Time
}

// NewLeader returns a leader for the term of the executor's authority. It sets the executor's State and Store. The
// State calls wake whenever there may be something to plan. wake must make Loop.Pass run soon. NewLeader starts
// nothing.
func NewLeader(x *execute.Executor, records Records, events shardstate.Events, wake func()) *Leader {
	state := shardstate.New(shardstate.Options{Term: x.Authority.Term(), Now: x.Env.Now, Wake: wake, Events: events})
	x.State, x.Store = state, records
	listKey := shardstate.ErrorKey{Kind: plan.AlertProvider}
	asker := &shardstate.Asker{State: state, Provider: x.Provider, Owner: x.Owner, Env: x.Env,
		Failed: func(err error) { state.RaiseError(listKey, fmt.Sprintf("ask the provider: %v", err)) },
		Answer: func() { state.ResolveError(listKey) }}
	loop := &Loop{Executor: x, Asker: asker, Planned: func(time.Duration) {}, Started: func(plan.Kind) {},
		CreateEvery: func() time.Duration { return 0 }}
	return &Leader{State: state, Executor: x, Asker: asker, Loop: loop, records: records}
}
