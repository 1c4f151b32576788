package sim

import (
	"context"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// edge is one server's bucket client. Like an SDK, it may send a write twice. It then returns the result of the second
// write.
type edge struct {
	*mem.Store
	server *server
}

func (s *server) edge() objstore.Store {
	if s.copied != nil {
		return s.copied
	}
	return edge{s.world.store, s}
}

// Put implements objstore.Store.
func (e edge) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	token, err := e.Store.Put(ctx, key, body, cond)
	if err == nil && e.server.repeats(bucketRepeated, key) {
		e.server.world.bucket.doubt(key, body)
		token, err = e.Store.Put(ctx, key, body, cond)
	}
	if err == nil {
		e.server.learn(key, body)
	}
	return token, err
}

// Get implements objstore.Store.
func (e edge) Get(ctx context.Context, key string) (objstore.Object, error) {
	object, err := e.Store.Get(ctx, key)
	if err == nil {
		e.server.learn(key, object.Body)
	}
	return object, err
}

// cloud is a provider client. Like an SDK it may repeat a call.
type cloud struct {
	*mock.Provider
	world *World
}

// Deregister implements infra.LoadBalancers. It notes until when the load balancer finishes the VM's requests.
func (c cloud) Deregister(ctx context.Context, lb string, vm infra.VM) error {
	c.leaves(lb, vm)
	return c.Provider.Deregister(ctx, lb, vm)
}

// Create implements infra.Provider.
func (c cloud) Create(ctx context.Context, req infra.CreateRequest) (infra.VM, error) {
	c.world.people.trial.asks(req)
	vm, err := c.Provider.Create(ctx, req)
	if err == nil && c.world.caller().repeats(cloudRepeated, req.Tags.Instance.String()) {
		second, err := c.Provider.Create(again(ctx), req)
		if infra.ClassOf(err) == infra.Capacity {
			return vm, nil // a provider that has the VM does not return this error
		}
		return second, err
	}
	if infra.ClassOf(err) == infra.Capacity {
		delete(c.world.fleet.asked, req.Tags.Instance) // this answer is definite: the call created no VM
	}
	return vm, err
}

// CreateBatch implements infra.Batch.
func (c cloud) CreateBatch(ctx context.Context, req infra.BatchRequest) ([]infra.VM, error) {
	for _, one := range single(req) {
		c.world.people.trial.asks(one)
	}
	vms, err := c.Provider.CreateBatch(ctx, req)
	if err == nil && c.world.caller().repeats(cloudRepeated, req.Batch.String()) {
		second, err := c.Provider.CreateBatch(again(ctx), req)
		if infra.ClassOf(err) == infra.Capacity {
			return vms, nil // a provider that has the VMs does not return this error
		}
		return second, err
	}
	if err == nil || infra.ClassOf(err) == infra.Capacity {
		made := map[ident.ID]bool{}
		for _, vm := range vms {
			made[vm.Tags.Instance] = true
		}
		for _, one := range single(req) {
			if !made[one.Tags.Instance] {
				delete(c.world.fleet.asked, one.Tags.Instance) // this answer is definite: no call makes this VM
			}
		}
	}
	return vms, err
}

// single returns the requests for the VMs of a batch.
func single(batch infra.BatchRequest) (requests []infra.CreateRequest) {
	for n := range batch.Count {
		one := batch.VM
		one.Tags = batch.Tags(n)
		requests = append(requests, one)
	}
	return requests
}

// Delete implements infra.Provider.
func (c cloud) Delete(ctx context.Context, vm infra.VM) error {
	err := c.Provider.Delete(ctx, vm)
	if err == nil && c.world.caller().repeats(cloudRepeated, vm.ProviderID) {
		return c.Provider.Delete(again(ctx), vm)
	}
	return err
}

// List implements infra.Provider. During a takeover, it sets term.listed to the time at which the call began. At its
// first plan, the leader then knows all VMs that are older than term.listed.
func (c cloud) List(ctx context.Context, owner infra.Owner) ([]infra.VM, error) {
	began, s := c.world.sched.now, c.world.caller()
	vms, err := c.Provider.List(ctx, owner)
	if err == nil && s != nil && s.term != nil && !s.term.ready && c.world.rates.of[cloudLag] == 0 &&
		began.After(s.term.began) {
		s.term.listed = began
	}
	return vms, err
}

type againKey struct{}

// again marks ctx as the context of a call that a client sends a second time. The checks ignore such a call, because
// they checked the first one.
func again(ctx context.Context) context.Context { return context.WithValue(ctx, againKey{}, true) }

func (s *server) repeats(k Kind, about string) bool {
	if s == nil || !s.alive() {
		return false
	}
	rate := s.world.rates.of[k]
	if rate == 0 {
		return false
	}
	occasion := s.occasion("again", about)
	d := dice{occasion}
	if !d.chance(rate) || !s.world.faults.admit(occasion, k) {
		return false
	}
	s.world.faults.about("%s of %s", about, s.process.name)
	return true
}
