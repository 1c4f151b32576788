package leader

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/execute"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/plan"
	"github.com/nstance-kit/nstance/services/internal/shardstate"
	"github.com/nstance-kit/nstance/services/internal/tasks"
)

// Records is the durable store of a shard's instances.
type Records interface {
	execute.Store
	// LoadInstances reads every instance record of the shard in parallel. It calls take for each, one call at a time.
	LoadInstances(ctx context.Context, take func(record.Instance, objstore.Token)) error
	// LoadUnseen does the same for the records with a listed version that seen does not know.
	LoadUnseen(ctx context.Context, seen func(ident.ID, objstore.Token) bool,
		take func(record.Instance, objstore.Token)) error
}

// Parts are the dependencies of a Leader.
type Parts struct {
	Owner       infra.Owner
	Incarnation string
	Authority   execute.Authority
	Records     Records
	Provider    infra.Provider
	Renderer    execute.Renderer
	Files       execute.Files
	Groups      execute.Groups
	Env         tasks.Env
	Events      shardstate.Events
	Log         *slog.Logger
	// Wake is called whenever there may be something to plan. It makes Loop.Pass run soon.
	Wake func()
}

// Leader holds one term's view of the shard and everything that acts on it.
type Leader struct {
	State    *shardstate.State
	Executor *execute.Executor
	Asker    *shardstate.Asker
	Loop     *Loop

	parts Parts
	// listed is the time at which TakeOver asked the provider for its list. It is zero if the provider did not answer.
	listed time.Time
}

// NewLeader returns a leader for the authority's term. It starts nothing.
func NewLeader(p Parts) *Leader {
	state := shardstate.New(shardstate.Options{Term: p.Authority.Term(), Now: p.Env.Now, Wake: p.Wake,
		Events: p.Events})
	executor := &execute.Executor{State: state, Store: p.Records, Provider: p.Provider, Authority: p.Authority,
		Renderer: p.Renderer, Files: p.Files, Groups: p.Groups, Env: p.Env, Log: p.Log, Owner: p.Owner,
		Incarnation: p.Incarnation}
	listKey := shardstate.ErrorKey{Kind: plan.AlertProvider}
	asker := &shardstate.Asker{State: state, Provider: p.Provider, Owner: p.Owner, Env: p.Env,
		Failed: func(err error) { state.RaiseError(listKey, fmt.Sprintf("ask the provider: %v", err)) },
		Answer: func() { state.ResolveError(listKey) }}
	loop := &Loop{State: state, Executor: executor, Asker: asker, Env: p.Env, Log: p.Log}
	return &Leader{State: state, Executor: executor, Asker: asker, Loop: loop, parts: p}
}
