package fleet

import (
	"context"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// Outcome is the common part of every shard's answer: the name of the shard, and the error if the call failed.
type Outcome struct {
	Shard string `json:"shard"`
	Err   *Error `json:"error,omitempty"`
}

func (o *Outcome) outcome() *Outcome { return o }

// Failed returns the errors of the calls that failed, in the order of the answers.
func Failed[T any, P Answer[T]](answers []T) []*Error {
	var errs []*Error
	for i := range answers {
		if err := P(&answers[i]).outcome().Err; err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Answer is a pointer to a struct that embeds [Outcome].
type Answer[T any] interface {
	*T
	outcome() *Outcome
}

// The answers of shards.
type (
	// GroupsAnswer lists groups.
	GroupsAnswer struct {
		Outcome
		Groups []Group `json:"groups,omitzero"`
	}
	// GroupAnswer is the answer to a change of a group.
	GroupAnswer struct {
		Outcome
		Group *Group `json:"group,omitempty"`
		// PreviousSize is the desired size before the change.
		PreviousSize *uint32 `json:"previous_size,omitempty"`
		// Restored means that a static group's override was removed and the group stays.
		Restored bool `json:"restored_static,omitempty" jsonschema:"description=The changes of operators to a static group were removed and the group itself stays"`
	}
	// InstancesAnswer lists instances.
	InstancesAnswer struct {
		Outcome
		Instances []Instance `json:"instances,omitzero"`
	}
	// InstanceAnswer is one instance.
	InstanceAnswer struct {
		Outcome
		Instance *Instance `json:"instance,omitempty"`
		// Group is the instance's group after a deletion that lowered the group's size.
		Group *Group `json:"group,omitempty" jsonschema:"description=The group after a deletion with decrement"`
	}
	// ConfigAnswer is the state of a shard's active configuration.
	ConfigAnswer struct {
		Outcome
		Config
	}
	// RefreshAnswer is one shard's answer to [Fleet.Refresh].
	RefreshAnswer struct {
		Outcome
		Refresh
	}
)

// Answers is the output form of the answers of several shards.
type Answers[T any] struct {
	Shards []T `json:"shards"`
}

// each calls `ask` once for each shard, concurrently. The answers are in the order of the shards.
func each[T any, P Answer[T]](ctx context.Context, shards []string, ask func(ctx context.Context, shard string,
	into *T) error) []T {
	answers := make([]T, len(shards))
	var wg sync.WaitGroup
	for i, shard := range shards {
		o := P(&answers[i]).outcome()
		o.Shard = shard
		wg.Go(func() {
			if err := ask(ctx, shard, &answers[i]); err != nil {
				o.Err = asError(shard, err)
			}
		})
	}
	wg.Wait()
	return answers
}

// ConfigStatus returns the state of the configuration of each shard.
func (f *Fleet) ConfigStatus(ctx context.Context, shards []string) []ConfigAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *ConfigAnswer) error {
		return f.call(ctx, shard, func(ctx context.Context, c Client) error {
			r, err := c.GetConfigStatus(ctx, &nstancev1.GetConfigStatusRequest{})
			into.Config = viewConfig(r)
			return err
		})
	})
}

// Refresh makes shards read their configuration immediately. If a shard's configuration is invalid, the shard's answer
// has an error and lists the problems.
func (f *Fleet) Refresh(ctx context.Context, shards []string) []RefreshAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *RefreshAnswer) error {
		err := f.call(ctx, shard, func(ctx context.Context, c Client) error {
			r, err := c.RefreshConfig(ctx, &nstancev1.RefreshConfigRequest{})
			if err == nil {
				into.Refresh = viewRefresh(r)
			}
			return err
		})
		if err == nil && into.Result == "invalid" {
			err = refuse(shard, codes.InvalidArgument,
				"the configuration before it stays in force; correct the file and push it again",
				"the configuration is invalid: %d problems", len(into.Problems))
		}
		return err
	})
}

// Groups lists the tenant's groups, sorted by name.
func (f *Fleet) Groups(ctx context.Context, shards []string) []GroupsAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *GroupsAnswer) error {
		var err error
		into.Groups, err = f.groups(ctx, shard)
		return err
	})
}

// Group returns one group of each shard. A missing group is an error.
func (f *Fleet) Group(ctx context.Context, shards []string, name string) []GroupsAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *GroupsAnswer) error {
		group, err := f.group(ctx, shard, name)
		if err == nil {
			into.Groups = []Group{group}
		}
		return err
	})
}

// pageSize is the number of groups or instances in one answer of a leader.
const pageSize = 1000

func (f *Fleet) groups(ctx context.Context, shard string) ([]Group, error) {
	var groups []Group
	err := f.call(ctx, shard, func(ctx context.Context, c Client) error {
		groups = []Group{}
		for token := ""; ; {
			r, err := c.ListGroups(ctx, &nstancev1.ListGroupsRequest{PageSize: pageSize, PageToken: token})
			if err != nil {
				return err
			}
			for _, g := range r.GetGroups() {
				groups = append(groups, viewGroup(g))
			}
			if token = r.GetNextPageToken(); token == "" {
				return nil
			}
		}
	})
	if err != nil {
		groups = nil
	}
	slices.SortFunc(groups, func(a, b Group) int { return strings.Compare(a.Name, b.Name) })
	return groups, err
}

func (f *Fleet) group(ctx context.Context, shard, name string) (Group, error) {
	groups, err := f.groups(ctx, shard)
	if err != nil {
		return Group{}, err
	}
	i := slices.IndexFunc(groups, func(g Group) bool { return g.Name == name })
	if i < 0 {
		return Group{}, refuse(shard, codes.NotFound, "nstance-admin group list shows the groups that there are",
			"there is no group %q", name)
	}
	return groups[i], nil
}

// scaleAttempts is the limit of attempts to change a group that other clients change at the same time.
const scaleAttempts = 5

// Scale changes only a group's desired size. The group must exist. Concurrent changes of other fields are kept.
func (f *Fleet) Scale(ctx context.Context, shards []string, name string, size uint32) []GroupAnswer {
	sizes := map[string]uint32{}
	for _, shard := range shards {
		sizes[shard] = size
	}
	return f.scale(ctx, shards, name, sizes)
}

func (f *Fleet) scale(ctx context.Context, shards []string, name string, sizes map[string]uint32) []GroupAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *GroupAnswer) error {
		var err error
		size := sizes[shard]
		for range scaleAttempts {
			var before Group
			if before, err = f.group(ctx, shard, name); err != nil {
				return err
			}
			if before.Deleting {
				return refuse(shard, codes.FailedPrecondition, "wait until it is gone, then create it again",
					"group %q is being deleted", name)
			}
			into.Group, err = f.upsert(ctx, shard, &nstancev1.UpsertGroupRequest{Group: name,
				Patch: sizePatch(size), ExpectedEtag: before.ETag, MustExist: true})
			if err == nil {
				into.PreviousSize = &before.Size
				return nil
			}
			if asError(shard, err).Code != codes.Aborted {
				return err
			}
		}
		return err
	})
}

// ScaleTotal divides a size evenly over the shards that have the group. If there is a remainder, the first shards get
// one instance more each. If any shard does not answer, ScaleTotal changes nothing.
func (f *Fleet) ScaleTotal(ctx context.Context, shards []string, name string, total uint32) []GroupAnswer {
	with, sizes, failed := f.divide(ctx, shards, name, total)
	switch {
	case failed != nil:
		return []GroupAnswer{{Outcome: *failed}}
	case len(with) == 0:
		return f.Scale(ctx, shards, name, total) // which says that there is no such group
	}
	return f.scale(ctx, with, name, sizes)
}

// divide divides the size `total` over the shards that have the group. It returns these shards and the new size in each
// of them. failed is the error of a shard that does not answer.
func (f *Fleet) divide(ctx context.Context, shards []string, name string, total uint32) (with []string,
	sizes map[string]uint32, failed *Outcome) {
	for _, answer := range f.Group(ctx, shards, name) {
		switch {
		case answer.Err == nil:
			with = append(with, answer.Shard)
		case answer.Err.Code != codes.NotFound || len(shards) == 1:
			return nil, nil, &answer.Outcome
		}
	}
	sizes = map[string]uint32{}
	for n, shard := range with {
		sizes[shard] = total / uint32(len(with))
		if uint32(n) < total%uint32(len(with)) {
			sizes[shard]++
		}
	}
	return with, sizes, nil
}

// ScalePreview is what a change of a group's size would do.
type ScalePreview struct {
	Outcome
	Group        string `json:"group"`
	PreviousSize uint32 `json:"previous_size"`
	Size         uint32 `json:"size"`
	ActualSize   uint32 `json:"actual_size"`
	// Plan is what the leader would do next if the group had the new size. It is nil if the caller did not ask for it.
	// It is also nil if the leader cannot plan for a size other than the present one.
	Plan *Explanation `json:"plan,omitempty"`
}

// PreviewScale returns what [Fleet.Scale] would do or, if total is set, what [Fleet.ScaleTotal] would do. It changes
// nothing. If plan is set, it also asks the leaders for their plans.
func (f *Fleet) PreviewScale(ctx context.Context, shards []string, name string, size uint32, total,
	plan bool) []ScalePreview {
	sizes := map[string]uint32{}
	for _, shard := range shards {
		sizes[shard] = size
	}
	if total {
		with, divided, failed := f.divide(ctx, shards, name, size)
		if failed != nil {
			return []ScalePreview{{Outcome: *failed}}
		}
		if len(with) > 0 {
			shards, sizes = with, divided
		}
	}
	return each(ctx, shards, func(ctx context.Context, shard string, into *ScalePreview) error {
		group, err := f.group(ctx, shard, name)
		into.Group, into.Size = name, sizes[shard]
		into.PreviousSize, into.ActualSize = group.Size, group.ActualSize
		if err != nil || !plan {
			return err
		}
		e, err := f.explain(ctx, shard, name, &into.Size)
		if err == nil && e.Desired == into.Size {
			into.Plan = e
		}
		return err
	})
}

// sizePatch is the patch that changes only the size of a group.
func sizePatch(size uint32) string {
	n := int(size)
	return config.PatchOf(config.GroupSpec{Size: &n}).JSON()
}

// CreateGroup creates a group with the settings in the patch. It fails if the group already exists.
func (f *Fleet) CreateGroup(ctx context.Context, shards []string, name string, patch config.Patch) []GroupAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *GroupAnswer) (err error) {
		into.Group, err = f.upsert(ctx, shard, &nstancev1.UpsertGroupRequest{Group: name, Patch: patch.JSON(),
			MustCreate: true})
		if err != nil && asError(shard, err).Code == codes.AlreadyExists {
			return refuse(shard, codes.AlreadyExists, "nstance-admin group set changes it", "group %q exists", name)
		}
		return err
	})
}

// SetGroup changes the settings in the patch. The group must exist.
func (f *Fleet) SetGroup(ctx context.Context, shards []string, name string, patch config.Patch) []GroupAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *GroupAnswer) (err error) {
		into.Group, err = f.upsert(ctx, shard, &nstancev1.UpsertGroupRequest{Group: name, Patch: patch.JSON(),
			MustExist: true})
		return err
	})
}

func (f *Fleet) upsert(ctx context.Context, shard string, r *nstancev1.UpsertGroupRequest) (*Group, error) {
	var group *Group
	err := f.call(ctx, shard, func(ctx context.Context, c Client) error {
		answer, err := c.UpsertGroup(ctx, r)
		if err == nil {
			view := viewGroup(answer.GetGroup())
			group = &view
		}
		return err
	})
	return group, err
}

// RolloutAction is what a person does to a group's rollout.
type RolloutAction string

// The actions of [Fleet.Rollout].
const (
	PauseRollout  RolloutAction = "pause"
	ResumeRollout RolloutAction = "resume"
	RollGroup     RolloutAction = "roll"
)

// Rollout pauses, resumes or starts the rollout of a group.
func (f *Fleet) Rollout(ctx context.Context, shards []string, name string, do RolloutAction) []GroupAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *GroupAnswer) error {
		return f.call(ctx, shard, func(ctx context.Context, c Client) error {
			var answer interface{ GetGroup() *nstancev1.GroupStatus }
			var err error
			switch do {
			case PauseRollout:
				answer, err = c.PauseGroup(ctx, &nstancev1.PauseGroupRequest{Group: name})
			case ResumeRollout:
				answer, err = c.ResumeGroup(ctx, &nstancev1.ResumeGroupRequest{Group: name})
			default:
				answer, err = c.RollGroup(ctx, &nstancev1.RollGroupRequest{Group: name})
			}
			if err == nil {
				view := viewGroup(answer.GetGroup())
				into.Group = &view
			}
			return err
		})
	})
}

// DeleteGroup deletes a dynamic group, or the override of a static one.
func (f *Fleet) DeleteGroup(ctx context.Context, shards []string, name string) []GroupAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *GroupAnswer) error {
		return f.call(ctx, shard, func(ctx context.Context, c Client) error {
			r, err := c.DeleteGroup(ctx, &nstancev1.DeleteGroupRequest{Group: name})
			into.Restored = r.GetRestoredStatic()
			return err
		})
	})
}

// Elsewhere removes the "not found" answers if any shard has the instance. An ID exists in one shard only.
func Elsewhere[T any, P Answer[T]](answers []T) []T {
	failed := func(a T) *Error { return P(&a).outcome().Err }
	if !slices.ContainsFunc(answers, func(a T) bool { return failed(a) == nil }) {
		return answers
	}
	return slices.DeleteFunc(answers, func(a T) bool { return failed(a) != nil && failed(a).Code == codes.NotFound })
}
