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
		all := &nstancev1.ListInstancesResponse{}
		err := pages(ctx, f, shard, func(ctx context.Context, c Client, token string) (string, error) {
			if token == "" {
				all.Instances = nil
			}
			r, err := c.ListInstances(ctx, &nstancev1.ListInstancesRequest{Group: group, PageSize: pageSize,
				PageToken: token})
			all.Instances = append(all.Instances, r.GetInstances()...)
			return r.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		slices.SortFunc(all.Instances, func(a, b *nstancev1.InstanceStatus) int {
			if c := strings.Compare(a.GetGroup(), b.GetGroup()); c != 0 {
				return c
			}
			// An ID begins with three characters for its kind, and continues with the time at which the ID was made.
			x, y := a.GetInstanceId(), b.GetInstanceId()
			return strings.Compare(x[min(3, len(x)):], y[min(3, len(y)):])
		})
		into.Message = all
		return nil
	})
}

// Instance returns the status of one instance.
func (f *Fleet) Instance(ctx context.Context, shards []string, id ident.ID) []InstanceAnswer {
	return ask(ctx, f, shards, Client.GetInstanceStatus, &nstancev1.GetInstanceStatusRequest{InstanceId: id.String()})
}

// CreateInstance creates an on-demand instance of a group. If id is zero, CreateInstance makes an ID. If the answer is
// lost, the error names the ID, so that the caller can repeat the call with it.
func (f *Fleet) CreateInstance(ctx context.Context, shards []string, group string, id ident.ID, instanceType string,
	vars map[string]string) []CreationAnswer {
	given := id
	return each(ctx, shards, func(ctx context.Context, shard string, into *CreationAnswer) error {
		id := given
		if id.IsZero() {
			of, err := f.group(ctx, shard, group)
			if err != nil {
				return err
			}
			if id, err = ident.NewID(of.GetKind(), f.options.Now(), f.options.Rand); err != nil {
				return fmt.Errorf("make an ID for an instance of group %s: %w", group, err)
			}
		}
		err := f.call(ctx, shard, func(ctx context.Context, c Client) (err error) {
			into.Message, err = c.CreateInstance(ctx, &nstancev1.CreateInstanceRequest{Group: group,
				InstanceId: id.String(), InstanceType: instanceType, Vars: vars})
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
	decrement bool) []DeletionAnswer {
	return ask(ctx, f, shards, Client.DeleteInstance, &nstancev1.DeleteInstanceRequest{InstanceId: id.String(),
		Reason: reason, Decrement: decrement})
}

// ProtectInstance excludes one instance from voluntary replacement and from a reduction of the group's size. If
// protected is false, it ends this exclusion.
func (f *Fleet) ProtectInstance(ctx context.Context, shards []string, id ident.ID,
	protected bool) []ProtectionAnswer {
	return ask(ctx, f, shards, Client.ProtectInstance, &nstancev1.ProtectInstanceRequest{InstanceId: id.String(),
		Protected: protected})
}
