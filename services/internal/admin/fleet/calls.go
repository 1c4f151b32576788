package fleet

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/suggest"
)

// Outcome is the common part of every shard's answer: the name of the shard, and the error if the call failed.
type Outcome struct {
	Shard string `json:"shard"`
	Err   *Error `json:"error,omitempty"`
	// LastKnown is when a leader last wrote to the bucket. It is set if the leader did not answer, and the answer is
	// what the bucket says. Err is set too.
	LastKnown *time.Time `json:"last_known,omitempty"`
}

func (o *Outcome) outcome() *Outcome { return o }

// Of returns the outcome itself.
func (o Outcome) Of() Outcome { return o }

// Result is a shard's answer, or its error.
type Result interface{ Of() Outcome }

// Failed returns the errors of the calls that failed, in the order of the answers.
func Failed[T Result](answers []T) []*Error {
	var errs []*Error
	for _, answer := range answers {
		if err := answer.Of().Err; err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Answer is the message with which a shard's leader answered a call. In JSON, the members of the message stand beside
// the name of the shard. Message is nil if the call failed, unless LastKnown is set.
type Answer[M proto.Message] struct {
	Outcome
	Message M `json:"-"`
}

// MarshalJSON returns the answer as JSON.
func (a Answer[M]) MarshalJSON() ([]byte, error) { return object(a.Outcome, a.Message) }

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

// Call makes one call of the leader of each shard. It reads all pages of a list. If the
// request names an instance and a shard has it, the failures of the other shards are left out. If a leader does not
// answer, the message is what is last known, and both Err and LastKnown are set.
func Call[Q, M proto.Message](ctx context.Context, f *Fleet, shards []string, method Method[Q, M],
	request Q) []Answer[M] {
	answers := each(ctx, shards, func(ctx context.Context, shard string, into *Answer[M]) (err error) {
		if into.Message, err = one(ctx, f, shard, method, request); err == nil {
			return nil
		}
		e := asError(shard, err)
		if known, at := lastKnown[M](ctx, f, e, request); at != nil {
			into.Message, into.LastKnown = known, at
		}
		return e
	})
	if r, ok := any(request).(interface{ GetInstanceId() string }); ok && r.GetInstanceId() != "" {
		return elsewhere(answers)
	}
	return answers
}

// lastKnown returns what is last known if a call failed because no leader answered. If that is not known either, it
// adds the reason to the error.
func lastKnown[M proto.Message](ctx context.Context, f *Fleet, e *Error, request proto.Message) (answer M,
	at *time.Time) {
	if f.options.LastKnown == nil || !e.NoAnswer() {
		return answer, nil
	}
	identity, err := f.Identity()
	if err != nil {
		return answer, nil
	}
	found, known, err := f.options.LastKnown.Answer(ctx, e.Shard, identity.Who.Tenant, request)
	if err != nil {
		e.Message += "; " + err.Error()
	}
	if err != nil || found == nil {
		return answer, nil
	}
	if list, ok := found.(*nstancev1.ListInstancesResponse); ok {
		slices.SortFunc(list.GetInstances(), compareInstances)
	}
	answer, _ = found.(M)
	return answer, &known
}

// Invoke is [Call] with a method that is known only at run time.
func (f *Fleet) Invoke(ctx context.Context, shards []string, method protoreflect.MethodDescriptor,
	request proto.Message) []Answer[proto.Message] {
	return Call(ctx, f, shards, func(c Client, ctx context.Context, r proto.Message,
		_ ...grpc.CallOption) (proto.Message, error) {
		out := reflect.ValueOf(c).MethodByName(string(method.Name())).Call([]reflect.Value{reflect.ValueOf(ctx),
			reflect.ValueOf(r)})
		err, _ := out[1].Interface().(error)
		return out[0].Interface().(proto.Message), err
	}, request)
}

// one makes one call of the leader of one shard.
func one[Q, M proto.Message](ctx context.Context, f *Fleet, shard string, method Method[Q, M],
	request Q) (answer M, err error) {
	prepared, err := f.prepared(ctx, shard, request)
	if err != nil {
		return answer, err
	}
	request = prepared.(Q)
	within, cancel := context.WithTimeout(ctx, f.options.Timeout)
	defer cancel()
	err = f.reach(within, shard, func(ctx context.Context, c Client) (err error) {
		answer, err = pages(ctx, c, method, request)
		return err
	})
	if err != nil {
		err = f.aboutRequest(ctx, shard, err, request)
	}
	switch m := any(answer).(type) {
	case *nstancev1.CreateInstanceResponse:
		if err != nil {
			err = createdPerhaps(shard, err, any(request).(*nstancev1.CreateInstanceRequest))
		}
	case *nstancev1.RefreshConfigResponse:
		if m.GetResult() == nstancev1.RefreshResult_REFRESH_RESULT_INVALID {
			err = refuse(shard, codes.InvalidArgument,
				"the configuration before it stays in force; correct the file and push it again",
				"the configuration is invalid: %s", Count(len(m.GetProblems()), "problem"))
		}
	case *nstancev1.ListInstancesResponse:
		slices.SortFunc(m.GetInstances(), compareInstances)
	}
	return answer, err
}

// aboutRequest adds to an error what to do about the group or the instance of the request.
func (f *Fleet) aboutRequest(ctx context.Context, shard string, err error, request proto.Message) error {
	if r, ok := request.(interface{ GetGroup() string }); ok && r.GetGroup() != "" {
		err = f.withGroups(ctx, asError(shard, err), r.GetGroup())
	}
	if r, ok := request.(interface{ GetInstanceId() string }); ok && r.GetInstanceId() != "" {
		if e := asError(shard, err); e.Code == codes.NotFound && strings.HasPrefix(e.Message, "instance_id:") {
			e.Hint = "nstance-admin events --instance " + r.GetInstanceId() + " shows whether it is gone, and why"
			err = e
		}
	}
	return err
}

// prepared returns the request that a leader gets. It returns an error if the request cannot succeed.
func (f *Fleet) prepared(ctx context.Context, shard string, request proto.Message) (proto.Message, error) {
	switch r := request.(type) {
	case *nstancev1.CreateInstanceRequest:
		return f.withID(ctx, shard, r)
	case *nstancev1.DeleteGroupRequest:
		return request, f.dynamic(ctx, shard, r.GetGroup())
	case *nstancev1.UpsertGroupRequest, *nstancev1.DeleteInstanceRequest:
		return unpinned(request), nil
	}
	return request, nil
}

// unpinned returns a request of a person: unless it asks for a pin, a changed configuration ends what it sets.
func unpinned[Q proto.Message](request Q) Q {
	pin := request.ProtoReflect().Descriptor().Fields().ByName("pin")
	if request.ProtoReflect().Has(pin) {
		return request
	}
	request = proto.CloneOf(request)
	request.ProtoReflect().Set(pin, protoreflect.ValueOfBool(false))
	return request
}

// dynamic returns an error for a static group, which no call can delete.
func (f *Fleet) dynamic(ctx context.Context, shard, name string) error {
	group, err := f.group(ctx, shard, name)
	if err == nil && group.GetIsStatic() {
		err = refuse(shard, codes.FailedPrecondition,
			fmt.Sprintf("to get back the configured values, run \"nstance-admin group reset %s\"; to delete the "+
				"group, remove it from the configuration", name), "group %q is static", name)
	}
	return err
}

// compareInstances sorts instances by group, and then from the oldest to the newest.
func compareInstances(a, b *nstancev1.InstanceStatus) int {
	// An ID begins with three characters for its kind, and continues with the time at which the ID was made.
	x, y := a.GetInstanceId(), b.GetInstanceId()
	return cmp.Or(strings.Compare(a.GetGroup(), b.GetGroup()),
		strings.Compare(x[min(3, len(x)):], y[min(3, len(y)):]))
}

// pageSize is the number of groups, instances or events in one answer of a leader.
const pageSize = 1000

// pages makes a call. If the answer is a page of a list, pages reads the other pages, too.
func pages[Q, M proto.Message](ctx context.Context, c Client, method Method[Q, M], request Q) (all M, err error) {
	fields := request.ProtoReflect().Descriptor().Fields()
	token := fields.ByName("page_token")
	if token == nil {
		return method(c, ctx, request)
	}
	request = proto.CloneOf(request)
	request.ProtoReflect().Set(fields.ByName("page_size"), protoreflect.ValueOfUint32(pageSize))
	for {
		page, err := method(c, ctx, request)
		if err != nil {
			return page, err
		}
		next := any(page).(interface{ GetNextPageToken() string }).GetNextPageToken()
		if token := request.ProtoReflect().Get(token).String(); token == "" {
			all = page
		} else {
			proto.Merge(all, page)
		}
		if next == "" {
			return all, nil
		}
		request.ProtoReflect().Set(token, protoreflect.ValueOfString(next))
	}
}

// elsewhere removes the failures if any shard has the instance. An ID exists in one shard only.
func elsewhere[M proto.Message](answers []Answer[M]) []Answer[M] {
	if !slices.ContainsFunc(answers, Answer[M].Answered) {
		return answers
	}
	return slices.DeleteFunc(answers, func(a Answer[M]) bool { return !a.Answered() })
}

// Answered reports whether there is a message, also if it is only what is last known.
func (a Answer[M]) Answered() bool { return a.Err == nil || a.LastKnown != nil }

// withID returns a request to create an instance with an ID, so that it can be repeated without making a second
// instance.
func (f *Fleet) withID(ctx context.Context, shard string,
	request *nstancev1.CreateInstanceRequest) (*nstancev1.CreateInstanceRequest, error) {
	if request.GetInstanceId() != "" {
		return request, nil
	}
	group, err := f.group(ctx, shard, request.GetGroup())
	if err != nil {
		return nil, err
	}
	id, err := ident.NewID(group.GetKind(), f.options.Now(), f.options.Rand)
	if err != nil {
		return nil, fmt.Errorf("make an ID for an instance of group %s: %w", request.GetGroup(), err)
	}
	request = proto.CloneOf(request)
	request.InstanceId = id.String()
	return request, nil
}

// createdPerhaps adds to the error of a lost answer the ID of the instance, so that the caller can repeat the call with
// it.
func createdPerhaps(shard string, err error, request *nstancev1.CreateInstanceRequest) error {
	e := asError(shard, err)
	if e.Code == codes.DeadlineExceeded || e.Code == codes.Unavailable || e.Code == codes.Canceled {
		e.Hint = fmt.Sprintf("it may have been created all the same; the same call with --instance-id %s finds it or "+
			"makes it, and never makes two", request.GetInstanceId())
	}
	return e
}

// withGroups adds to the error about a missing group the name that the caller probably meant, or the names that exist.
func (f *Fleet) withGroups(ctx context.Context, e *Error, name string) *Error {
	if e.Code != codes.NotFound || !strings.HasPrefix(e.Message, "group:") {
		return e
	}
	r, err := one(ctx, f, e.Shard, Client.ListGroups, &nstancev1.ListGroupsRequest{})
	if err != nil {
		return e
	}
	var names []string
	for _, g := range r.GetGroups() {
		names = append(names, g.GetGroup())
	}
	near := suggest.Nearest(name, names)
	switch {
	case near != "":
		e.Hint = fmt.Sprintf("did you mean %q?", near)
	case len(names) == 0:
		e.Hint = "the tenant has no groups there"
	case len(names) <= 10:
		e.Hint = "the tenant's groups there are: " + strings.Join(names, ", ")
	}
	return e
}

// group returns one group of a shard.
func (f *Fleet) group(ctx context.Context, shard, name string) (*nstancev1.GroupStatus, error) {
	r, err := one(ctx, f, shard, Client.ListGroups, &nstancev1.ListGroupsRequest{Group: name})
	if err != nil {
		return nil, err
	}
	return r.GetGroups()[0], nil
}

// Changed is the answer to a change of a group. Before is the group before the change.
type Changed struct {
	Answer[*nstancev1.UpsertGroupResponse]
	Before *nstancev1.GroupStatus `json:"-"`
}

// MarshalJSON returns the answer as JSON, with the desired size before the change.
func (c Changed) MarshalJSON() ([]byte, error) {
	var before struct {
		PreviousSize *uint32 `json:"previous_size,omitempty"`
	}
	if c.Before != nil && c.Err == nil {
		before.PreviousSize = proto.Uint32(c.Before.GetSize())
	}
	return object(c.Outcome, before, c.Message)
}

// Edit is a change of a group that depends on what the group is before: a [Scaling] or a [Reset].
type Edit interface {
	// of returns the shards to which the change applies, and the change in each of them.
	of(ctx context.Context, f *Fleet, shards []string) ([]string, edit)
}

// edit returns a group of a shard, and the request for its change.
type edit func(ctx context.Context, shard string) (*nstancev1.GroupStatus, *nstancev1.UpsertGroupRequest, error)

// editTries is the number of times that a change is repeated because the group changed meanwhile.
const editTries = 5

// Edit changes a group of each shard. The group must exist. Concurrent changes of other fields are kept.
func (f *Fleet) Edit(ctx context.Context, shards []string, e Edit) []Changed {
	shards, edit := e.of(ctx, f, shards)
	return each(ctx, shards, func(ctx context.Context, shard string, into *Changed) (err error) {
		for range editTries {
			var request *nstancev1.UpsertGroupRequest
			if into.Before, request, err = edit(ctx, shard); err != nil {
				return err
			}
			into.Message, err = one(ctx, f, shard, Client.UpsertGroup, request)
			if err == nil || request.GetExpectedEtag() == "" || asError(shard, err).Code != codes.Aborted {
				break
			}
		}
		return err
	})
}

// Scaling is a new size of a group. If it is a change of the present size, no concurrent change of the size is lost. If
// it is a total and any shard does not answer, nothing changes.
type Scaling struct {
	Group string
	Size  int
	// By means that Size is added to the present size.
	By bool
	// Total means that Size is divided evenly over the shards that have the group. If there is a remainder, the first
	// shards get one instance more each.
	Total bool
	// Pin means that a static group keeps the size when the configuration changes.
	Pin bool
	// Until is when a static group gets its configured size again; zero: when the configuration has another size.
	Until time.Time
}

// sizeOf returns the new size of a group.
func (s Scaling) sizeOf(shard string, group *nstancev1.GroupStatus) (uint32, error) {
	size := s.Size
	if s.By {
		size += int(group.GetSize())
	}
	if size < 0 || size > math.MaxInt32 {
		return 0, refuse(shard, codes.InvalidArgument, "give the new size without a sign, or another change",
			"group %q has the size %d, and cannot have %d", group.GetGroup(), group.GetSize(), size)
	}
	return uint32(size), nil
}

func (s Scaling) of(ctx context.Context, f *Fleet, shards []string) ([]string, edit) {
	shards, sizes, failed := f.divide(ctx, shards, s)
	if failed != nil {
		shards = []string{failed.Shard}
	}
	return shards, func(ctx context.Context, shard string) (*nstancev1.GroupStatus, *nstancev1.UpsertGroupRequest,
		error) {
		if failed != nil {
			return nil, nil, failed.Err
		}
		return f.scaleRequest(ctx, shard, sizes[shard])
	}
}

// scaleRequest returns the group before a change of its size, and the request for the change.
func (f *Fleet) scaleRequest(ctx context.Context, shard string, scaling Scaling) (*nstancev1.GroupStatus,
	*nstancev1.UpsertGroupRequest, error) {
	before, err := f.group(ctx, shard, scaling.Group)
	if err != nil {
		return nil, nil, err
	}
	if before.GetDeleting() {
		return nil, nil, refuse(shard, codes.FailedPrecondition, "wait until it is gone, then create it again",
			"group %q is being deleted", scaling.Group)
	}
	to, err := scaling.sizeOf(shard, before)
	if err != nil {
		return nil, nil, err
	}
	size := int(to)
	request := &nstancev1.UpsertGroupRequest{Group: scaling.Group, MustExist: true, Pin: &scaling.Pin,
		Patch: config.PatchOf(config.GroupSpec{Size: &size}).JSON()}
	if !scaling.Until.IsZero() {
		request.Until = timestamppb.New(scaling.Until)
	}
	if scaling.By {
		request.ExpectedEtag = before.GetEtag()
	}
	return before, request, nil
}

// divide returns the shards to which a scaling applies, and the scaling of each of them. failed is the error of a shard
// that does not answer.
func (f *Fleet) divide(ctx context.Context, shards []string, scaling Scaling) (with []string,
	sizes map[string]Scaling, failed *Outcome) {
	sizes = map[string]Scaling{}
	for _, shard := range shards {
		sizes[shard] = scaling
	}
	if !scaling.Total {
		return shards, sizes, nil
	}
	for _, answer := range Call(ctx, f, shards, Client.ListGroups, &nstancev1.ListGroupsRequest{Group: scaling.Group}) {
		switch {
		case answer.Err == nil:
			with = append(with, answer.Shard)
		case answer.Err.Code != codes.NotFound || len(shards) == 1:
			return nil, nil, &answer.Outcome
		}
	}
	for n, shard := range with {
		size := scaling.Size / len(with)
		if n < scaling.Size%len(with) {
			size++
		}
		sizes[shard] = Scaling{Group: scaling.Group, Size: size, Pin: scaling.Pin, Until: scaling.Until}
	}
	if len(with) == 0 {
		with = shards // which say that there is no such group
	}
	return with, sizes, nil
}

// MakesSmaller reports whether a scaling would make its group smaller in any shard. It ignores shards that fail.
func (f *Fleet) MakesSmaller(ctx context.Context, shards []string, scaling Scaling) bool {
	shards, sizes, _ := f.divide(ctx, shards, scaling)
	answers := Call(ctx, f, shards, Client.ListGroups, &nstancev1.ListGroupsRequest{Group: scaling.Group})
	return slices.ContainsFunc(answers, func(a Answer[*nstancev1.ListGroupsResponse]) bool {
		if a.Err != nil {
			return false
		}
		group := a.Message.GetGroups()[0]
		to, err := sizes[a.Shard].sizeOf(a.Shard, group)
		return err == nil && to < group.GetSize()
	})
}
