package operatorapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/act/execute"
	"github.com/nstance-kit/nstance/services/internal/server/act/leader"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
)

const (
	// maxAhead limits how far a client's clock may be ahead of this server's clock, if the client chooses the instance
	// ID.
	maxAhead = 5 * time.Minute
	// maxCreating is the limit of concurrent on-demand creations.
	maxCreating = 4096
)

// ListInstances lists the tenant's live instances, the oldest first.
func (c *call) ListInstances(_ context.Context, req *nstancev1.ListInstancesRequest) (
	*nstancev1.ListInstancesResponse, error) {
	if group := req.GetGroup(); group != "" {
		if err := groupName("group", group); err != nil {
			return nil, err
		}
		if _, ok := c.state().GroupView(c.key(group)); !ok {
			return nil, errNoGroup(c.key(group))
		}
	}
	var after ident.ID // zero: before all
	if req.GetPageToken() != "" {
		var err error
		if after, err = ident.ParseID(req.GetPageToken()); err != nil {
			return nil, invalid("page_token", "%v", err)
		}
	}
	all := c.state().Instances(c.tenant, req.GetGroup())
	if req.GetPreserved() {
		all = slices.DeleteFunc(all, func(v shardstate.InstanceView) bool { return v.Record.Preserved == nil })
	}
	views, more := pageOf(all, req.GetPageSize(),
		func(v shardstate.InstanceView) bool { return v.Record.ID.Compare(after) > 0 })
	answer := &nstancev1.ListInstancesResponse{}
	for _, view := range views {
		answer.Instances = append(answer.Instances, c.instanceStatus(view))
	}
	if more {
		answer.NextPageToken = views[len(views)-1].Record.ID.String()
	}
	return answer, nil
}

// GetInstanceStatus returns the status of one instance. It finds a deleted instance as long as its record is kept.
func (c *call) GetInstanceStatus(_ context.Context, req *nstancev1.GetInstanceStatusRequest) (
	*nstancev1.GetInstanceStatusResponse, error) {
	view, err := c.instance(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	return &nstancev1.GetInstanceStatusResponse{Instance: c.instanceStatus(view)}, nil
}

// instance returns the tenant's instance with the given ID.
func (c *call) instance(text string) (shardstate.InstanceView, error) {
	id, err := instanceID(text)
	if err != nil {
		return shardstate.InstanceView{}, err
	}
	view, ok := c.state().Instance(id)
	if ok && view.Record.Tenant == c.tenant {
		return view, nil
	}
	// Do not return NotFound here: the client would forget an instance that this leader may still adopt.
	if left, unsettled := c.state().Leftover(id); unsettled && left.Record.Tenant == c.tenant {
		return shardstate.InstanceView{}, status.Errorf(codes.Unavailable,
			"instance_id: %s was reserved by an earlier leader and is being recovered: try again", id)
	}
	return shardstate.InstanceView{}, errNoInstance(id)
}

func errNoInstance(id ident.ID) error {
	return status.Errorf(codes.NotFound, "instance_id: there is no instance %s", id)
}

// DeleteInstance returns when the intent to delete is durable. If the instance is already being deleted, DeleteInstance
// can only shorten its drain. It does nothing for a deleted instance.
func (c *call) DeleteInstance(_ context.Context, req *nstancev1.DeleteInstanceRequest) (
	*nstancev1.DeleteInstanceResponse, error) {
	if err := checkText("reason", req.GetReason(), maxReason); err != nil {
		return nil, err
	}
	view, err := c.instance(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	id := view.Record.ID
	answer := &nstancev1.DeleteInstanceResponse{}
	if req.GetDecrement() {
		if answer.Group, err = c.decrement(view, req.Pin); err != nil {
			return nil, err
		}
	}
	if view.Record.State != record.Deleted {
		reason := cmp.Or(req.GetReason(), "requested by operator "+c.operator.String())
		c.addEvent(record.Event{Kind: record.EventDeletionRequested, Group: view.Record.Group, Instance: id.String(),
			Message: reason})
		if c.rehearsal != nil {
			c.rehearseDeletion(id, reason)
			return answer, nil
		}
		switch err := c.Leader.Leader.DeleteInstance(c, id, reason); {
		case errors.Is(err, leader.ErrNoInstance):
			return nil, errNoInstance(id)
		case err != nil:
			// The instance could not be marked for deletion. If it was deleted for another reason in the meantime, the
			// request has nothing left to do.
			if now, ok := c.state().Instance(id); !ok || now.Record.State != record.Deleted {
				return nil, err
			}
		}
	}
	if view, err = c.instance(req.GetInstanceId()); err != nil {
		return nil, err
	}
	answer.Instance = c.instanceStatus(view)
	return answer, nil
}

// ReleaseInstance deletes a preserved instance, as DeleteInstance does. Unlike DeleteInstance, it refuses an instance
// that is not preserved.
func (c *call) ReleaseInstance(ctx context.Context, req *nstancev1.ReleaseInstanceRequest) (
	*nstancev1.ReleaseInstanceResponse, error) {
	view, err := c.instance(req.GetInstanceId())
	switch {
	case err != nil:
		return nil, err
	case view.Record.Preserved == nil:
		return nil, status.Errorf(codes.FailedPrecondition, "instance_id: instance %s is not preserved: it is %s",
			view.Record.ID, view.Record.State)
	case view.Record.State == record.Deleting:
		return &nstancev1.ReleaseInstanceResponse{Instance: c.instanceStatus(view)}, nil
	}
	answer, err := c.DeleteInstance(ctx, &nstancev1.DeleteInstanceRequest{InstanceId: req.GetInstanceId(),
		Reason: "released by operator " + c.operator.String()})
	return &nstancev1.ReleaseInstanceResponse{Instance: answer.GetInstance()}, err
}

// decrement lowers the size of an instance's group by one and marks the instance for removal. Both changes are one
// write to the group's entry in the bucket. The planner deletes the marked instance afterwards (rule 44), even if the
// leader changes before that. If the instance has the mark already, or is deleted, decrement changes nothing.
func (c *call) decrement(view shardstate.InstanceView, pin *bool) (*nstancev1.GroupStatus, error) {
	switch {
	case view.Record.OnDemand:
		return nil, invalid("decrement", "instance %s was created on demand and does not count towards a size",
			view.Record.ID)
	case view.Record.IsSpare():
		return nil, invalid("decrement", "instance %s is a spare and does not count towards a size", view.Record.ID)
	case view.Record.Preserved != nil:
		return nil, invalid("decrement", "instance %s is preserved and does not count towards a size", view.Record.ID)
	}
	key, id := c.key(view.Record.Group), view.Record.ID.String()
	if view.Record.State != record.Deleted {
		lowered := false
		by := c.caller(pin)
		if entry, ok := c.Config.Override(key); ok { // a pin and an end of the former size apply to the new one
			former := entry.Overrides["size"]
			by.Until, _ = time.Parse(time.RFC3339, former.Until)
			by.Pinned = by.Pinned || former.Pinned
		}
		group, err := c.Config.Upsert(c, key, "", by, func(spec *config.GroupSpec, exists bool) error {
			if !exists {
				return errNoGroup(key)
			}
			if lowered = !slices.Contains(spec.Removed, id); !lowered {
				return nil
			}
			have := c.Config.Groups()[key]
			now, _ := have.SizeAt(by.At)
			size := max(0, now-1)
			spec.Size = &size
			spec.Removed = append(c.live(have.Removed), id)
			return nil
		})
		if err != nil {
			return nil, c.groupFault(key, err)
		}
		if lowered {
			c.addEvent(record.Event{Kind: record.EventGroupChanged, Group: key.Group, Instance: id,
				Message: fmt.Sprintf("size %d", group.Size)})
		}
	}
	now, ok := c.state().GroupView(key)
	if !ok {
		return nil, errNoGroup(key)
	}
	return c.groupStatus(now), nil
}

// live returns those of the given IDs whose instances are not deleted yet.
func (c *call) live(ids []ident.ID) (live []string) {
	for _, id := range ids {
		if rec, _, ok := c.state().Record(id); ok && rec.State != record.Deleted {
			live = append(live, id.String())
		}
	}
	return live
}

// AcknowledgeDrained ends an instance's drain. It does nothing for an instance that is deleted or unknown. If the
// instance is preserved, its later deletion does not wait for another drain.
func (c *call) AcknowledgeDrained(_ context.Context, req *nstancev1.AcknowledgeDrainedRequest) (
	*nstancev1.AcknowledgeDrainedResponse, error) {
	id, err := instanceID(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	rec, _, ok := c.state().Record(id)
	switch {
	case !ok || rec.Tenant != c.tenant:
	case rec.State != record.Deleting && rec.Preserved == nil:
		return nil, status.Errorf(codes.FailedPrecondition, "instance_id: instance %s is not being deleted", id)
	default:
		c.state().Drained(id)
	}
	return &nstancev1.AcknowledgeDrainedResponse{}, nil
}

// creation is one on-demand creation in progress. It continues when its client disconnects. Another request with the
// same ID waits for the same creation.
type creation struct {
	done   chan struct{}
	id     ident.ID
	tenant string
	err    error
}

// CreateInstance creates an on-demand instance. It returns when the provider has accepted the VM and the record is
// durable.
func (c *call) CreateInstance(_ context.Context, req *nstancev1.CreateInstanceRequest) (
	*nstancev1.CreateInstanceResponse, error) {
	if err := groupName("group", req.GetGroup()); err != nil {
		return nil, err
	}
	if err := checkText("instance_type", req.GetInstanceType(), maxText); err != nil {
		return nil, err
	}
	if err := checkVars(req.GetVars()); err != nil {
		return nil, err
	}
	var id ident.ID
	if req.GetInstanceId() != "" {
		var err error
		if id, err = instanceID(req.GetInstanceId()); err != nil {
			return nil, err
		}
		if ahead := id.Time().Sub(c.Now()); ahead > maxAhead {
			return nil, invalid("instance_id", "was made %s in the future: check the clock of the machine that made it",
				ahead.Round(time.Second))
		}
	}
	// If an instance with the ID exists, this is a repeated request. The rest of the request is then not checked,
	// because the configuration may have changed since the first request.
	_, _, lives := c.state().Record(id)
	if !lives {
		if err := c.checkInstance(req); err != nil {
			return nil, err
		}
	}
	made, err := c.create(c.key(req.GetGroup()), id, lives, req.GetInstanceType(), maps.Clone(req.GetVars()))
	if err != nil {
		return nil, err
	}
	select {
	case <-made.done:
	case <-c.Done():
		return nil, c.Err()
	}
	if made.err != nil {
		return nil, createFault(c.key(req.GetGroup()), made)
	}
	view, ok := c.state().Instance(made.id)
	if !ok {
		return nil, errNoInstance(made.id)
	}
	return &nstancev1.CreateInstanceResponse{Instance: c.instanceStatus(view)}, nil
}

// checkInstance validates the group's configuration with the request's instance type and variables, and checks that the
// shard's configuration permits them.
func (c *call) checkInstance(req *nstancev1.CreateInstanceRequest) error {
	key := c.key(req.GetGroup())
	group, ok := c.Config.Groups()[key]
	if !ok || group.Deleted {
		return errNoGroup(key)
	}
	spec, _ := c.Config.Override(key)
	if group.Static {
		spec = spec.Override()
	}
	spec.InstanceType = cmp.Or(req.GetInstanceType(), spec.InstanceType)
	vars := maps.Clone(spec.Vars)
	if vars == nil {
		vars = map[string]string{}
	}
	maps.Copy(vars, req.GetVars())
	spec.Vars = vars
	if err := config.CheckUpsert(c.Config.Shard(), key, spec); err != nil {
		return c.refusedGroup(key, err)
	}
	return nil
}

// create starts a creation, or returns the one in progress with the same ID. The parameter lives is true if the
// instance exists already. The creation continues when the client disconnects: once the provider has been called, the
// result must be recorded.
func (c *call) create(key config.GroupKey, id ident.ID, lives bool, instanceType string,
	vars map[string]string) (*creation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if made, ok := c.creating[id]; ok && !id.IsZero() {
		return made, nil
	}
	if len(c.creating) >= maxCreating {
		return nil,
			status.Error(codes.ResourceExhausted, "too many instances are being created on demand: try again later")
	}
	if !lives {
		if err := c.permitInstance(key); err != nil {
			return nil, err
		}
	}
	leader, made := c.Leader, &creation{done: make(chan struct{}), id: id, tenant: c.tenant}
	if id.IsZero() {
		fresh, err := c.freshID(key)
		if err != nil {
			return nil, err
		}
		made.id = fresh
	}
	if c.creating == nil {
		c.creating = map[ident.ID]*creation{}
	}
	c.creating[made.id] = made
	c.addEvent(record.Event{Kind: record.EventInstanceRequested, Group: key.Group, Instance: made.id.String()})
	leader.Leader.Executor.Env.Go("create on demand", func() {
		_, made.err = leader.Leader.CreateInstance(leader.Context, key, made.id, instanceType, vars)
		leader.mu.Lock()
		delete(leader.creating, made.id)
		leader.mu.Unlock()
		close(made.done)
	})
	return made, nil
}

func (c *call) freshID(key config.GroupKey) (ident.ID, error) {
	group, ok := c.state().Group(key)
	if !ok {
		return ident.ID{}, errNoGroup(key)
	}
	env := c.Leader.Leader.Executor.Env
	return ident.NewID(group.Kind, env.Now(), env.Rand)
}

// createFault converts errors of a creation to status errors.
func createFault(key config.GroupKey, made *creation) error {
	err := made.err
	var superseded *clusterstate.SupersededError
	switch {
	case errors.Is(err, leader.ErrNoGroup):
		return errNoGroup(key)
	case errors.Is(err, leader.ErrKind):
		return invalid("instance_id", "%v", err)
	case errors.Is(err, leader.ErrDead), errors.As(err, &superseded) && superseded.Record.State == record.Deleted:
		return status.Errorf(codes.AlreadyExists,
			"instance_id: %s was used before or belongs to another tenant: choose another ID", made.id)
	case superseded != nil:
		return status.Errorf(codes.Unavailable,
			"instance_id: %s was created by an earlier leader and is being recovered: try again", made.id)
	case errors.Is(err, execute.ErrNoCapacity):
		return status.Errorf(codes.ResourceExhausted, "instance %s: %v", made.id, err)
	}
	switch infra.ClassOf(err) {
	case infra.Denied, infra.Invalid, infra.Conflict:
		return status.Errorf(codes.FailedPrecondition,
			"instance %s: the provider refused to create it: %v (choose another ID: this one cannot be used again)",
			made.id, err)
	}
	return err
}

// ProtectInstance protects an instance, or ends its protection. The planner does not remove a protected instance to
// lower the size, and replaces it only if it must (rule 54). The group's entry in the bucket lists the instance, so
// that later leaders protect it, too.
func (c *call) ProtectInstance(_ context.Context, req *nstancev1.ProtectInstanceRequest) (
	*nstancev1.ProtectInstanceResponse, error) {
	view, err := c.instance(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	key, id := c.key(view.Record.Group), view.Record.ID
	protect := !req.GetOff()
	switch {
	case view.Record.OnDemand:
		return nil, invalid("instance_id", "instance %s was created on demand: it is never replaced or chosen", id)
	case protect && view.Record.Preserved != nil:
		return nil, status.Errorf(codes.FailedPrecondition, "instance_id: instance %s is preserved", id)
	case protect && (view.Record.State == record.Deleting || view.Record.State == record.Deleted):
		return nil, status.Errorf(codes.FailedPrecondition, "instance_id: instance %s is %s", id, view.Record.State)
	}
	changed := false
	_, err = c.Config.Upsert(c, key, "", c.caller(nil), func(spec *config.GroupSpec, exists bool) error {
		if !exists {
			return errNoGroup(key)
		}
		changed = slices.Contains(spec.Protected, id.String()) != protect
		if !changed {
			return nil
		}
		spec.Protected = slices.DeleteFunc(c.live(c.Config.Groups()[key].Protected), func(text string) bool {
			return text == id.String()
		})
		if protect {
			spec.Protected = append(spec.Protected, id.String())
		}
		return nil
	})
	if err != nil {
		return nil, c.groupFault(key, err)
	}
	if changed {
		message := "it is no longer protected"
		if protect {
			message = "it is protected from voluntary replacement and from a smaller size"
		}
		c.addEvent(record.Event{Kind: record.EventGroupChanged, Group: key.Group, Instance: id.String(),
			Message: message})
	}
	if view, err = c.instance(req.GetInstanceId()); err != nil {
		return nil, err
	}
	return &nstancev1.ProtectInstanceResponse{Instance: c.instanceStatus(view)}, nil
}
