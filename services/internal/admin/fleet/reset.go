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

// Reset gives a static group the values of the configuration again.
func (f *Fleet) Reset(ctx context.Context, shards []string, name string, patch config.Patch) []Changed {
	return f.edit(ctx, shards, f.reset(name, patch))
}

func (f *Fleet) reset(name string, patch config.Patch) edit {
	return func(ctx context.Context, shard string) (*nstancev1.GroupStatus, *nstancev1.UpsertGroupRequest, error) {
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
}
