package fleet

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// Reset gives a static group the values of the configuration again.
type Reset struct {
	group string
	patch config.Patch
}

// NewReset returns a reset of the fields of a group at the given paths. Without paths, it resets all fields except for
// the revision of a roll, because another one would replace all instances.
func NewReset(group string, paths ...string) (r Reset, err error) {
	r.group = group
	if len(paths) == 0 {
		paths = slices.DeleteFunc(config.OperatorFields(), func(path string) bool { return path == "rollout.revision" })
	}
	for _, path := range paths {
		if r.patch, err = r.patch.Unset(path); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (r Reset) of(_ context.Context, f *Fleet, shards []string) ([]string, edit) {
	return shards, func(ctx context.Context, shard string) (*nstancev1.GroupStatus, *nstancev1.UpsertGroupRequest,
		error) {
		before, err := f.group(ctx, shard, r.group)
		if err != nil {
			return nil, nil, err
		}
		if !before.GetIsStatic() {
			return nil, nil, refuse(shard, codes.FailedPrecondition,
				fmt.Sprintf("to change it, run \"nstance-admin group set %s\"", r.group),
				"group %q is dynamic: the configuration has no values for it", r.group)
		}
		return before, &nstancev1.UpsertGroupRequest{Group: r.group, Patch: r.patch.JSON(), MustExist: true,
			ExpectedEtag: before.GetEtag()}, nil
	}
}
