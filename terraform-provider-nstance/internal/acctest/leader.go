package acctest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"crypto/rand"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Leader is a fake leader of the shard. It renews the lock, and applies the configuration in the bucket. It adds and
// removes instance records until each group has as many as its size. It reads and writes with the same code as the
// server.
type Leader struct {
	t     testing.TB
	b     Bucket
	state *clusterstate.State
	lock  record.Lock
	token objstore.Token
	// stuck means that instances in the state deleting are never deleted.
	stuck bool
	stop  context.CancelFunc
	done  chan struct{}
}

// Lead starts a leader that runs until it is stopped or the test ends. A stuck leader never finishes a deletion.
func Lead(t testing.TB, b Bucket, stuck bool) *Leader {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	l := &Leader{t: t, b: b, state: b.State(t), stuck: stuck, stop: stop, done: make(chan struct{})}
	l.lock = record.Lock{LeaderID: "server-1", Incarnation: "incarnation-1", Term: 1, LeaseMS: 4000, RenewMS: 1000}
	if _, token, err := l.state.ReadLock(ctx, Shard); err == nil {
		l.token = token
	}
	go func() {
		defer close(l.done)
		tick := time.NewTicker(30 * time.Millisecond)
		defer tick.Stop()
		for {
			if err := l.pass(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("leader: %v", err)
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(l.Kill)
	return l
}

// Kill stops the leader without releasing the lock.
func (l *Leader) Kill() {
	l.stop()
	<-l.done
}

// Resign stops the leader and releases the lock.
func (l *Leader) Resign() {
	l.Kill()
	l.lock.Released = true
	if err := l.renew(context.Background()); err != nil {
		l.t.Errorf("leader: resign: %v", err)
	}
}

func (l *Leader) pass(ctx context.Context) error {
	body, source, err := l.state.ReadConfig(ctx, Shard)
	if errors.Is(err, objstore.ErrNotFound) {
		return l.renew(ctx)
	}
	if err != nil {
		return err
	}
	s, problems := config.Parse("config", body)
	if s == nil {
		return problems.Err()
	}
	if l.lock.AppliedETag != string(source) {
		if err := l.state.WriteApplied(ctx, body, source, l.lock.Term); err != nil {
			return err
		}
		l.lock.AppliedETag = string(source)
	}
	merged, problems := s.Merged(config.Groups{})
	if err := problems.Err(); err != nil {
		return err
	}
	have := map[config.GroupKey][]record.Instance{}
	tokens := map[ident.ID]objstore.Token{}
	err = l.state.LoadInstances(ctx, func(rec record.Instance, token objstore.Token) {
		tokens[rec.ID] = token
		if rec.State != record.Deleted {
			key := config.GroupKey{Tenant: rec.Tenant, Group: rec.Group}
			have[key] = append(have[key], rec)
		}
	})
	if err != nil {
		return err
	}
	for key, instances := range have {
		for i, rec := range instances {
			if i < merged[key].Size && slices.Contains(merged[key].Subnets, rec.SubnetID) {
				continue
			}
			if err := l.delete(ctx, rec, tokens[rec.ID]); err != nil {
				return err
			}
		}
	}
	for key, group := range merged {
		for range group.Size - len(have[key]) {
			if err := l.create(ctx, group); err != nil {
				return err
			}
		}
	}
	return l.renew(ctx)
}

func (l *Leader) create(ctx context.Context, group config.Group) error {
	id, err := ident.NewID(group.Kind, time.Now(), rand.Reader)
	if err != nil {
		return err
	}
	_, err = l.state.PutInstance(ctx, record.Instance{
		Schema: record.InstanceSchema, ID: id, State: record.Created, Revision: 1, Term: 1, ReservedTerm: 1,
		Writer:  l.lock.Incarnation,
		Cluster: Cluster, Shard: Shard, Tenant: group.Tenant, Kind: group.Kind, Group: group.Group,
		Template: group.Template, SubnetID: group.Subnets[0],
		InfraHash: group.InfraHash, CreatedAt: time.Now(), ProviderID: "vm-" + id.String(),
	}, "")
	return err
}

// delete moves an instance to its next state: first to deleting, then to deleted.
func (l *Leader) delete(ctx context.Context, rec record.Instance, token objstore.Token) error {
	to := record.Deleting
	if rec.State == record.Deleting {
		if l.stuck {
			return nil
		}
		to = record.Deleted
	}
	next, err := rec.Next(to, l.lock.Term, l.lock.Incarnation)
	if err != nil {
		return err
	}
	now := time.Now()
	if to == record.Deleting {
		next.DeleteReason, next.DeletingAt, next.DeleteDeadline = "scaled down", now, now
	} else {
		next.DeletedAt = now
	}
	_, err = l.state.PutInstance(ctx, next, token)
	return err
}

func (l *Leader) renew(ctx context.Context) error {
	l.lock.Revision++
	l.lock.RenewedAt = time.Now()
	body, err := record.EncodeLock(l.lock)
	if err != nil {
		return err
	}
	cond := objstore.IfAbsent()
	if l.token != "" {
		cond = objstore.IfToken(l.token)
	}
	l.token, err = l.b.Put(ctx, keys.Leader(Shard), body, cond)
	return err
}

// Applied returns the configuration that the leader applied last.
func (b Bucket) Applied(t testing.TB) []byte {
	t.Helper()
	applied, err := b.State(t).ReadApplied(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(applied.Body)
}
