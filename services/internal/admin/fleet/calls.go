package fleet

import (
	"context"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// Outcome is the common part of every shard's answer: the name of the shard, and the error if the call failed.
type Outcome struct {
	Shard string `json:"shard"`
	Err   *Error `json:"error,omitempty"`
}

func (o *Outcome) outcome() *Outcome { return o }

// Failure returns the error, or nil.
func (o Outcome) Failure() *Error { return o.Err }

// Result is a shard's answer, or its error.
type Result interface{ Failure() *Error }

// Failed returns the errors of the calls that failed, in the order of the answers.
func Failed[T Result](answers []T) []*Error {
	var errs []*Error
	for _, answer := range answers {
		if err := answer.Failure(); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Answer is the message with which a shard's leader answered a call. In JSON, the members of the message stand beside
// the name of the shard. Message is nil if the call failed.
type Answer[M proto.Message] struct {
	Outcome
	Message M `json:"-"`
}

// MarshalJSON returns the answer as JSON.
func (a Answer[M]) MarshalJSON() ([]byte, error) { return object(a.Outcome, a.Message) }

// Descriptor describes the message of the answer.
func (a Answer[M]) Descriptor() protoreflect.MessageDescriptor {
	return a.Message.ProtoReflect().Descriptor()
}

// The answers of shards.
type (
	// StatusAnswer is the answer to [Fleet.Status].
	StatusAnswer = Answer[*nstancev1.GetShardStatusResponse]
	// StepDownAnswer is the answer to [Fleet.StepDown].
	StepDownAnswer = Answer[*nstancev1.StepDownResponse]
	// OrphansAnswer is the answer to [Fleet.Orphans].
	OrphansAnswer = Answer[*nstancev1.ListOrphansResponse]
	// ConfirmAnswer is the answer to [Fleet.ConfirmOrphans].
	ConfirmAnswer = Answer[*nstancev1.ConfirmOrphansResponse]
	// ConfigAnswer is the answer to [Fleet.ConfigStatus].
	ConfigAnswer = Answer[*nstancev1.GetConfigStatusResponse]
	// RefreshAnswer is the answer to [Fleet.Refresh].
	RefreshAnswer = Answer[*nstancev1.RefreshConfigResponse]
	// GroupsAnswer lists groups.
	GroupsAnswer = Answer[*nstancev1.ListGroupsResponse]
	// GroupAnswer is the answer to a change of a group.
	GroupAnswer = Answer[*nstancev1.UpsertGroupResponse]
	// GroupDeleteAnswer is the answer to [Fleet.DeleteGroup].
	GroupDeleteAnswer = Answer[*nstancev1.DeleteGroupResponse]
	// InstancesAnswer lists instances.
	InstancesAnswer = Answer[*nstancev1.ListInstancesResponse]
	// InstanceAnswer is the answer to [Fleet.Instance].
	InstanceAnswer = Answer[*nstancev1.GetInstanceStatusResponse]
	// CreationAnswer is the answer to [Fleet.CreateInstance].
	CreationAnswer = Answer[*nstancev1.CreateInstanceResponse]
	// DeletionAnswer is the answer to [Fleet.DeleteInstance].
	DeletionAnswer = Answer[*nstancev1.DeleteInstanceResponse]
	// ProtectionAnswer is the answer to [Fleet.ProtectInstance].
	ProtectionAnswer = Answer[*nstancev1.ProtectInstanceResponse]
	// HistoryAnswer lists events of a shard's journal, from the oldest to the newest.
	HistoryAnswer = Answer[*nstancev1.ListEventsResponse]
)

// Answers is the output form of the answers of several shards.
type Answers[T any] struct {
	Shards []T `json:"shards"`
}

// each calls `do` once for each shard, concurrently. The answers are in the order of the shards.
func each[T any, P interface {
	*T
	outcome() *Outcome
}](ctx context.Context, shards []string, do func(ctx context.Context, shard string, into *T) error) []T {
	answers := make([]T, len(shards))
	var wg sync.WaitGroup
	for i, shard := range shards {
		o := P(&answers[i]).outcome()
		o.Shard = shard
		wg.Go(func() {
			if err := do(ctx, shard, &answers[i]); err != nil {
				o.Err = asError(shard, err)
			}
		})
	}
	wg.Wait()
	return answers
}

// ask makes one call of each shard.
func ask[Q any, M proto.Message](ctx context.Context, f *Fleet, shards []string,
	method func(Client, context.Context, Q, ...grpc.CallOption) (M, error), request Q) []Answer[M] {
	return each(ctx, shards, func(ctx context.Context, shard string, into *Answer[M]) error {
		return f.call(ctx, shard, func(ctx context.Context, c Client) (err error) {
			into.Message, err = method(c, ctx, request)
			return err
		})
	})
}

// pageSize is the number of groups or instances in one answer of a leader.
const pageSize = 1000

// pages calls `read` for each page, with the token of the page. read returns the token of the next page. If a server
// does not answer, pages begins again with the first page.
func pages(ctx context.Context, f *Fleet, shard string, read func(ctx context.Context, c Client,
	token string) (string, error)) error {
	return f.call(ctx, shard, func(ctx context.Context, c Client) error {
		for token := ""; ; {
			var err error
			if token, err = read(ctx, c, token); err != nil || token == "" {
				return err
			}
		}
	})
}

// Groups lists the tenant's groups, sorted by name.
func (f *Fleet) Groups(ctx context.Context, shards []string) []GroupsAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *GroupsAnswer) (err error) {
		into.Message, err = f.groups(ctx, shard)
		return err
	})
}

// Group returns one group of each shard. A missing group is an error.
func (f *Fleet) Group(ctx context.Context, shards []string, name string) []GroupsAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *GroupsAnswer) error {
		group, err := f.group(ctx, shard, name)
		if err == nil {
			into.Message = &nstancev1.ListGroupsResponse{Groups: []*nstancev1.GroupStatus{group}}
		}
		return err
	})
}

func (f *Fleet) groups(ctx context.Context, shard string) (*nstancev1.ListGroupsResponse, error) {
	all := &nstancev1.ListGroupsResponse{}
	err := pages(ctx, f, shard, func(ctx context.Context, c Client, token string) (string, error) {
		if token == "" {
			all.Groups = nil
		}
		r, err := c.ListGroups(ctx, &nstancev1.ListGroupsRequest{PageSize: pageSize, PageToken: token})
		all.Groups = append(all.Groups, r.GetGroups()...)
		return r.GetNextPageToken(), err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all.Groups, func(a, b *nstancev1.GroupStatus) int {
		return strings.Compare(a.GetGroup(), b.GetGroup())
	})
	return all, nil
}

func (f *Fleet) group(ctx context.Context, shard, name string) (*nstancev1.GroupStatus, error) {
	all, err := f.groups(ctx, shard)
	if err != nil {
		return nil, err
	}
	groups := all.GetGroups()
	i := slices.IndexFunc(groups, func(g *nstancev1.GroupStatus) bool { return g.GetGroup() == name })
	if i < 0 {
		return nil, refuse(shard, codes.NotFound, "nstance-admin group list shows the groups that there are",
			"there is no group %q", name)
	}
	return groups[i], nil
}

// scaleAttempts is the limit of attempts to change a group that other clients change at the same time.
const scaleAttempts = 5

// ScaleAnswer is the answer to a change of a group's size. PreviousSize is the desired size before the change.
type ScaleAnswer struct {
	GroupAnswer
	PreviousSize *uint32 `json:"previous_size,omitempty"`
}

// MarshalJSON returns the answer as JSON.
func (a ScaleAnswer) MarshalJSON() ([]byte, error) {
	return object(a.Outcome, struct {
		PreviousSize *uint32 `json:"previous_size,omitempty"`
	}{a.PreviousSize}, a.Message)
}

// Scale changes only a group's desired size. The group must exist. Concurrent changes of other fields are kept.
func (f *Fleet) Scale(ctx context.Context, shards []string, name string, size uint32) []ScaleAnswer {
	sizes := map[string]uint32{}
	for _, shard := range shards {
		sizes[shard] = size
	}
	return f.scale(ctx, shards, name, sizes)
}

func (f *Fleet) scale(ctx context.Context, shards []string, name string, sizes map[string]uint32) []ScaleAnswer {
	return each(ctx, shards, func(ctx context.Context, shard string, into *ScaleAnswer) error {
		var err error
		size := sizes[shard]
		for range scaleAttempts {
			var before *nstancev1.GroupStatus
			if before, err = f.group(ctx, shard, name); err != nil {
				return err
			}
			if before.GetDeleting() {
				return refuse(shard, codes.FailedPrecondition, "wait until it is gone, then create it again",
					"group %q is being deleted", name)
			}
			into.Message, err = f.upsert(ctx, shard, &nstancev1.UpsertGroupRequest{Group: name,
				Patch: sizePatch(size), ExpectedEtag: before.GetEtag(), MustExist: true})
			if err == nil {
				into.PreviousSize = proto.Uint32(before.GetSize())
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
func (f *Fleet) ScaleTotal(ctx context.Context, shards []string, name string, total uint32) []ScaleAnswer {
	with, sizes, failed := f.divide(ctx, shards, name, total)
	switch {
	case failed != nil:
		return []ScaleAnswer{{GroupAnswer: GroupAnswer{Outcome: *failed}}}
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
	// Plan is what the leader would do next if the group had the new size. It is empty if the caller did not ask for
	// it, and if the leader cannot plan for a size other than the present one.
	Plan Message[*nstancev1.ExplainGroupResponse] `json:"plan,omitzero"`
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
		into.PreviousSize, into.ActualSize = group.GetSize(), group.GetActualSize()
		if err != nil || !plan {
			return err
		}
		e, err := f.explain(ctx, shard, name, &into.Size)
		if err == nil && e.GetDesired() == into.Size {
			into.Plan = messageOf(e)
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
		into.Message, err = f.upsert(ctx, shard, &nstancev1.UpsertGroupRequest{Group: name, Patch: patch.JSON(),
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
		into.Message, err = f.upsert(ctx, shard, &nstancev1.UpsertGroupRequest{Group: name, Patch: patch.JSON(),
			MustExist: true})
		return err
	})
}

func (f *Fleet) upsert(ctx context.Context, shard string,
	request *nstancev1.UpsertGroupRequest) (r *nstancev1.UpsertGroupResponse, err error) {
	err = f.call(ctx, shard, func(ctx context.Context, c Client) (err error) {
		r, err = c.UpsertGroup(ctx, request)
		return err
	})
	return r, err
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
				into.Message = &nstancev1.UpsertGroupResponse{Group: answer.GetGroup()}
			}
			return err
		})
	})
}

// DeleteGroup deletes a dynamic group, or the override of a static one.
func (f *Fleet) DeleteGroup(ctx context.Context, shards []string,
	name string) []GroupDeleteAnswer {
	return ask(ctx, f, shards, Client.DeleteGroup, &nstancev1.DeleteGroupRequest{Group: name})
}

// Elsewhere removes the "not found" answers if any shard has the instance. An ID exists in one shard only.
func Elsewhere[T Result](answers []T) []T {
	if !slices.ContainsFunc(answers, func(a T) bool { return a.Failure() == nil }) {
		return answers
	}
	return slices.DeleteFunc(answers, func(a T) bool { e := a.Failure(); return e != nil && e.Code == codes.NotFound })
}
