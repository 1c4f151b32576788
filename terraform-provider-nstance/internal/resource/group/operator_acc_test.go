package group_test

import (
	"context"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
)

// call changes the group through the operator API, as another client would. A nil change deletes the group.
func (s testShard) call(t *testing.T, change func(*config.GroupSpec)) error {
	t.Helper()
	return s.server.Client(t, "default").Call(context.Background(), "dev-1",
		func(ctx context.Context, c servers.Client) error {
			if change == nil {
				if _, err := c.DeleteGroup(ctx, &nstancev1.DeleteGroupRequest{Group: "fleet"}); err != nil {
					return err
				}
				for ctx.Err() == nil {
					answer, err := c.ListGroups(ctx, &nstancev1.ListGroupsRequest{})
					if err != nil || len(answer.GetGroups()) == 1 { // only the static group remains
						return err
					}
					select {
					case <-ctx.Done():
					case <-time.After(20 * time.Millisecond):
					}
				}
				return ctx.Err()
			}
			var spec config.GroupSpec
			change(&spec)
			req := &nstancev1.UpsertGroupRequest{Group: "fleet", Patch: config.PatchOf(spec).JSON()}
			_, err := c.UpsertGroup(ctx, req)
			return err
		})
}
