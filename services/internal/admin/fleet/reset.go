package fleet

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// ResetPatch returns the patch that gives a static group the values of the configuration again: of the fields at the
// given paths, or of all fields except for the revision of a roll, because another one would replace all instances.
func ResetPatch(paths []string) (patch config.Patch, err error) {
	if len(paths) == 0 {
		paths = slices.DeleteFunc(config.OperatorFields(), func(path string) bool { return path == "rollout.revision" })
	}
	for _, path := range paths {
		if patch, err = patch.Unset(path); err != nil {
			return patch, err
		}
	}
	return patch, nil
}

// ResetAnswer is the answer to a reset. Before is the group before it.
type ResetAnswer struct {
	Answer[*nstancev1.UpsertGroupResponse]
	Before *nstancev1.GroupStatus `json:"-"`
}

// Reset gives a static group the values of the configuration again.
func (f *Fleet) Reset(ctx context.Context, shards []string, name string, patch config.Patch) []ResetAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *ResetAnswer) (err error) {
		var request *nstancev1.UpsertGroupRequest
		if into.Before, request, err = f.resetRequest(ctx, shard, name, patch); err != nil {
			return err
		}
		into.Message, err = one(ctx, f, shard, Client.UpsertGroup, request)
		return err
	})
}

// resetRequest returns the group before a reset, and the request for the reset.
func (f *Fleet) resetRequest(ctx context.Context, shard, name string, patch config.Patch) (*nstancev1.GroupStatus,
	*nstancev1.UpsertGroupRequest, error) {
	before, err := f.group(ctx, shard, name)
	if err != nil {
		return nil, nil, err
	}
	if !before.GetIsStatic() {
		return nil, nil, refuse(shard, codes.FailedPrecondition,
			fmt.Sprintf("to change it, run \"nstance-admin group set %s\"", name),
			"group %q is dynamic: the configuration has no values for it", name)
	}
	return before, &nstancev1.UpsertGroupRequest{Group: name, Patch: patch.JSON(), MustExist: true,
		ExpectedEtag: before.GetEtag()}, nil
}
