package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// Preview is what the leader of a shard would do after a change.
type Preview = Answer[*nstancev1.ExplainChangeResponse]

// Explain returns what leaders would do after the change of a request, such as a RollGroupRequest. It changes nothing.
func (f *Fleet) Explain(ctx context.Context, shards []string, request proto.Message) []Preview {
	previews := f.explain(ctx, shards, func(context.Context, string) (proto.Message, error) { return request, nil })
	if r, ok := request.(interface{ GetInstanceId() string }); ok && r.GetInstanceId() != "" {
		return elsewhere(previews)
	}
	return previews
}

// ExplainEdit returns what leaders would do after [Fleet.Edit].
func (f *Fleet) ExplainEdit(ctx context.Context, shards []string, e Edit) []Preview {
	shards, edit := e.of(ctx, f, shards)
	return f.explain(ctx, shards, func(ctx context.Context, shard string) (proto.Message, error) {
		_, request, err := edit(ctx, shard)
		return request, err
	})
}

// explain asks the leader of each shard about the request that a function returns for this shard.
func (f *Fleet) explain(ctx context.Context, shards []string,
	requestOf func(ctx context.Context, shard string) (proto.Message, error)) []Preview {
	return each(ctx, shards, func(ctx context.Context, shard string, into *Preview) error {
		request, err := requestOf(ctx, shard)
		if err == nil {
			request, err = f.prepared(ctx, shard, request)
		}
		if err != nil {
			return err
		}
		into.Message, err = one(ctx, f, shard, Client.ExplainChange, ChangeOf(request))
		if err != nil {
			err = f.aboutRequest(ctx, shard, err, request)
			if e := asError(shard, err); e.Code == codes.Unimplemented {
				e.Hint = "update the servers of the shard, or go on without a preview with --yes"
			}
		}
		return err
	})
}

// ChangeOf returns the request to explain the change of another request. It returns nil if there is no preview of such
// a request.
func ChangeOf(request proto.Message) *nstancev1.ExplainChangeRequest {
	if change, ok := request.(*nstancev1.ExplainChangeRequest); ok {
		return change
	}
	change := &nstancev1.ExplainChangeRequest{}
	field := changeField(request.ProtoReflect().Descriptor())
	if field == nil {
		return nil
	}
	change.ProtoReflect().Set(field, protoreflect.ValueOfMessage(request.ProtoReflect()))
	return change
}

// Explainable reports whether [ChangeOf] returns a request for the requests of this kind.
func Explainable(request protoreflect.MessageDescriptor) bool { return changeField(request) != nil }

func changeField(request protoreflect.MessageDescriptor) protoreflect.FieldDescriptor {
	fields := (*nstancev1.ExplainChangeRequest)(nil).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if fields.Get(i).Message() == request {
			return fields.Get(i)
		}
	}
	return nil
}

// mostLines is the number of instances of a group that [ChangeTexts] names for each kind of action.
const mostLines = 20

// ChangeTexts describes what a leader would do after a change, one line for each effect.
func ChangeTexts(change *nstancev1.ExplainChangeResponse) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, p := range change.GetProblems() {
		add("the leader would refuse the configuration: %s: %s", p.GetPath(), p.GetMessage())
	}
	if change.GetRestarting() {
		add("the servers would restart, one after the other; instances keep running")
	}
	if s := change.GetStepDown(); s != nil {
		to := "another server, or to " + s.GetLeaderId() + " again if it is alone"
		if s.GetHeirId() != "" {
			to = s.GetHeirId()
		}
		add("%s would hand the leadership over to %s", s.GetLeaderId(), to)
	}
	if o := change.GetConfirmOrphans(); o != nil {
		add("%s would be terminated", Count(o.GetConfirmed(), "VM"))
	}
	for _, g := range change.GetGroups() {
		lines = append(lines, groupTexts(g)...)
	}
	if len(lines) == 0 {
		add("nothing would change")
	}
	return lines
}

// groupTexts describes a change of one group.
func groupTexts(change *nstancev1.GroupChange) (lines []string) {
	before, after, plan := change.GetBefore(), change.GetAfter(), change.GetPlan()
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	switch fields := changedFields(before, after); {
	case before == nil:
		add("group %s would be created with size %d", after.GetGroup(), after.GetSize())
	case after == nil:
		add("group %s would be removed from the configuration, with its %s", before.GetGroup(),
			Count(before.GetActualSize(), "instance"))
	case after.GetDeleting() && !before.GetDeleting():
		add("group %s would be deleted with its %s", after.GetGroup(), Count(before.GetActualSize(), "instance"))
	case after.GetDeleting():
		add("group %s is being deleted already", after.GetGroup())
	case len(fields) == 0:
		add("group %s: its settings stay; size %d, %d there", after.GetGroup(), after.GetSize(), before.GetActualSize())
	default:
		add("group %s: %s, %d there", after.GetGroup(), strings.Join(fields, ", "), before.GetActualSize())
	}
	if before != nil && after != nil {
		was, is := config.ReadSettings(before.GetMergedJson()), config.ReadSettings(after.GetMergedJson())
		if text := config.ScalingChange(was.Scaling, is.Scaling); text != "" {
			add("group %s: %s", after.GetGroup(), text)
		}
	}
	if n := after.GetOutdated(); n > 0 && !after.GetDeleting() {
		settings := config.ReadSettings(after.GetMergedJson())
		most := 1
		if settings.MaxSurge != nil {
			most = *settings.MaxSurge
		}
		if r := settings.Rollout; r != nil && r.MaxUnavailable > 0 {
			most = r.MaxUnavailable
		}
		add("%d of %s would be replaced, up to %d at a time", n, Count(after.GetActualSize(), "instance"), most)
	}
	created := 0
	ended := map[string]int{}
	for _, action := range plan.GetActions() {
		id := action.GetInstanceId()
		text := map[string]string{"mark_deleting": "deleted", "drain": "drained", "terminate": "terminated",
			"preserve": "preserved"}[action.GetKind()]
		switch {
		case action.GetKind() == "create" && action.GetReplaces() != "":
			add("1 instance would be created in place of %s: %s", action.GetReplaces(), action.GetReason())
		case action.GetKind() == "create":
			created++
		case action.GetKind() == "promote" && action.GetReplaces() != "":
			add("spare %s would become a member in place of %s: %s", id, action.GetReplaces(), action.GetReason())
		case action.GetKind() == "promote":
			add("spare %s would become a member", id)
		case action.GetKind() == "sleep":
			add("spare %s would be put to sleep", id)
		case action.GetKind() == "wake":
			add("instance %s would be woken", id)
		case text == "":
		case ended[text] < mostLines:
			ended[text]++
			add("instance %s would be %s: %s", id, text, action.GetReason())
		default:
			ended[text]++
		}
	}
	for _, text := range slices.Sorted(maps.Keys(ended)) {
		if more := ended[text] - mostLines; more > 0 {
			add("%s more would be %s", Count(more, "instance"), text)
		}
	}
	if created > 0 {
		add("%s would be created", Count(created, "instance"))
	}
	if plan.GetBlockedReason() != "" || plan.GetRolloutWaits() != "" {
		add("group %s would wait: %s", plan.GetGroup(), WaitText(plan))
	}
	return lines
}

// changedFields describes the settings of a group that a change changes, the size first: "size 4 → 6 (configured)".
func changedFields(before, after *nstancev1.GroupStatus) (fields []string) {
	was, now := SettingsByPath(before), SettingsByPath(after)
	was["size"], now["size"] = fmt.Sprint(before.GetSize()), fmt.Sprint(after.GetSize())
	paths := maps.Clone(was)
	maps.Copy(paths, now)
	had, has := overridesByPath(before), overridesByPath(after)
	for _, path := range slices.SortedFunc(maps.Keys(paths), func(a, b string) int {
		if (a == "size") != (b == "size") {
			return map[bool]int{true: -1, false: 1}[a == "size"]
		}
		return strings.Compare(a, b)
	}) {
		from, to := orNone(was[path]), orNone(now[path])
		old, set := had[path], has[path]
		note := ""
		switch {
		case set != nil && !proto.Equal(old, set):
			note = " (" + overrideText(set) + ")"
		case old != nil && set == nil:
			note = " (configured)"
		}
		if from != to || note != "" {
			fields = append(fields, fmt.Sprintf("%s %s → %s%s", path, from, to, note))
		}
	}
	return fields
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

func overridesByPath(g *nstancev1.GroupStatus) map[string]*nstancev1.GroupOverride {
	byPath := map[string]*nstancev1.GroupOverride{}
	for _, o := range g.GetOverrides() {
		byPath[o.GetPath()] = o
	}
	return byPath
}

// SettingsByPath returns the settings of a group as JSON, by path.
func SettingsByPath(g *nstancev1.GroupStatus) map[string]string {
	byPath := map[string]string{}
	var settings map[string]any
	if json.Unmarshal([]byte(g.GetMergedJson()), &settings) != nil {
		return byPath
	}
	var visit func(value any, path string)
	visit = func(value any, path string) {
		if members, ok := value.(map[string]any); ok && len(members) > 0 {
			for name, member := range members {
				visit(member, config.ChildPath(path, name))
			}
			return
		}
		text, isText := value.(string)
		if encoded, err := json.Marshal(value); err == nil && !isText {
			text = string(encoded)
		}
		byPath[path] = text
	}
	visit(settings, "")
	return byPath
}
