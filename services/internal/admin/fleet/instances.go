package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// Instances lists the tenant's instances, sorted by group and then from oldest to newest. If group is not empty, it
// lists only instances of that group.
func (f *Fleet) Instances(ctx context.Context, shards []string, group string) []InstancesAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *InstancesAnswer) error {
		err := f.call(ctx, shard, func(ctx context.Context, c Client) error {
			into.Instances = []Instance{}
			for token := ""; ; {
				r, err := c.ListInstances(ctx, &nstancev1.ListInstancesRequest{Group: group, PageSize: pageSize,
					PageToken: token})
				if err != nil {
					return err
				}
				for _, i := range r.GetInstances() {
					into.Instances = append(into.Instances, viewInstance(i))
				}
				if token = r.GetNextPageToken(); token == "" {
					return nil
				}
			}
		})
		if err != nil {
			into.Instances = nil
		}
		slices.SortFunc(into.Instances, func(a, b Instance) int {
			if c := strings.Compare(a.Group, b.Group); c != 0 {
				return c
			}
			// An ID begins with three characters for its kind, and continues with the time at which the ID was made.
			return strings.Compare(a.ID[min(3, len(a.ID)):], b.ID[min(3, len(b.ID)):])
		})
		return err
	})
}

// Instance returns the status of one instance.
func (f *Fleet) Instance(ctx context.Context, shards []string, id ident.ID) []InstanceAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *InstanceAnswer) error {
		return f.call(ctx, shard, func(ctx context.Context, c Client) error {
			r, err := c.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id.String()})
			into.setInstance(r.GetInstance(), err)
			return err
		})
	})
}

func (a *InstanceAnswer) setInstance(i *nstancev1.InstanceStatus, err error) {
	if err == nil {
		view := viewInstance(i)
		a.Instance = &view
	}
}

// CreateInstance creates an on-demand instance of a group. If id is zero, CreateInstance makes an ID. If the answer is
// lost, the error names the ID, so that the caller can repeat the call with it.
func (f *Fleet) CreateInstance(ctx context.Context, shards []string, group string, id ident.ID, instanceType string,
	vars map[string]string) []InstanceAnswer {
	given := id
	return each(ctx, shards, func(ctx context.Context, shard string, into *InstanceAnswer) error {
		id := given
		if id.IsZero() {
			of, err := f.group(ctx, shard, group)
			if err != nil {
				return err
			}
			if id, err = ident.NewID(of.Kind, f.options.Now(), f.options.Rand); err != nil {
				return fmt.Errorf("make an ID for an instance of group %s: %w", group, err)
			}
		}
		err := f.call(ctx, shard, func(ctx context.Context, c Client) error {
			r, err := c.CreateInstance(ctx, &nstancev1.CreateInstanceRequest{Group: group, InstanceId: id.String(),
				InstanceType: instanceType, Vars: vars})
			into.setInstance(r.GetInstance(), err)
			return err
		})
		if err != nil {
			e := asError(shard, err)
			if e.Code == codes.DeadlineExceeded || e.Code == codes.Unavailable || e.Code == codes.Canceled {
				e.Hint = fmt.Sprintf(
					"it may have been created all the same; the same call with --instance-id %s finds it or makes "+
						"it, and never makes two", id)
			}
			return e
		}
		return nil
	})
}

// DeleteInstance deletes one instance. If decrement is set, it also lowers the size of the instance's group by one. It
// returns when the decision to delete is stored durably, before the instance is gone.
func (f *Fleet) DeleteInstance(ctx context.Context, shards []string, id ident.ID, reason string,
	decrement bool) []InstanceAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *InstanceAnswer) error {
		return f.call(ctx, shard, func(ctx context.Context, c Client) error {
			r, err := c.DeleteInstance(ctx, &nstancev1.DeleteInstanceRequest{InstanceId: id.String(), Reason: reason,
				Decrement: decrement})
			into.setInstance(r.GetInstance(), err)
			if r.GetGroup() != nil {
				group := viewGroup(r.GetGroup())
				into.Group = &group
			}
			return err
		})
	})
}

// ProtectInstance excludes one instance from voluntary replacement and from a reduction of the group's size. If
// protected is false, it ends this exclusion.
func (f *Fleet) ProtectInstance(ctx context.Context, shards []string, id ident.ID, protected bool) []InstanceAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *InstanceAnswer) error {
		return f.call(ctx, shard, func(ctx context.Context, c Client) error {
			r, err := c.ProtectInstance(ctx, &nstancev1.ProtectInstanceRequest{InstanceId: id.String(),
				Protected: protected})
			into.setInstance(r.GetInstance(), err)
			return err
		})
	})
}
