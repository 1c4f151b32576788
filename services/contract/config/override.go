package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"time"
)

// Override is the record of a field of a static group that an operator has set.
type Override struct {
	// The value that the field had in the configuration. When the configuration gets another value, the override ends,
	// unless it is pinned.
	Configured any `json:"configured,omitempty" support:"present"`
	// Who set the field.
	By string `json:"by,omitempty" support:"words"`
	// When the field was set, in RFC 3339.
	At string `json:"at,omitempty" support:"plain"`
	// When the override ends, even if the configuration stays the same, in RFC 3339. Empty: never.
	Until string `json:"until,omitempty" support:"plain"`
	// Whether the override stays when the configuration changes.
	Pinned bool `json:"pinned,omitempty"`
}

// ByScaling is the name under which a leader records the sizes that it has chosen. See [Scaling].
const ByScaling = "scaling"

func (o Override) byScaling() bool { return o.By == ByScaling && o.Pinned && o.Until == "" }

// held reports whether an operator has set a size that the leader must not change at present.
func (o Override) held() bool { return !o.byScaling() && (o.Pinned || o.Until != "") }

// SizeHeld reports whether the entry of a static group in groups/ has a size of an operator that the leader must not
// change.
func (s GroupSpec) SizeHeld() bool { return s.Size != nil && s.Overrides[pathSize].held() }

// Caller describes an operator that changes a group.
type Caller struct {
	Name string
	At   time.Time
	// Pinned and Until apply to the fields that the operator sets. See [Override].
	Pinned bool
	Until  time.Time
	// Sets holds the paths of fields that the operator sets, even if their values stay the same.
	Sets []string
}

// SetField is a field of a static group with the value that an operator has set.
type SetField struct {
	Path string
	// Value is the operator's value. Configured, in place of that of the record, is the present value in the
	// configuration, or nil if there is none.
	Value, Configured any
	Override
}

const (
	pathSize     = "size"
	pathPaused   = "rollout.paused"
	pathRevision = "rollout.revision"
)

// ended reports whether an override has ended at a time. configured is the present value in the configuration. A zero
// time is before every limit.
func (o Override) ended(path string, configured any, now time.Time) bool {
	if until := o.until(); !until.IsZero() && !now.IsZero() && !now.Before(until) {
		return true
	}
	// A roll is an order and not a value: no change of the configuration takes it back.
	return !o.Pinned && path != pathRevision && !reflect.DeepEqual(o.Configured, configured)
}

// until returns the time at which the override ends, or the zero time.
func (o Override) until() time.Time {
	until, _ := time.Parse(time.RFC3339, o.Until) // only servers write it
	return until
}

// operatorValues returns the values of the fields that operators may change in a static group, by path.
func operatorValues(spec GroupSpec) map[string]any {
	tree, out := treeOf(spec), map[string]any{}
	for _, path := range operatorFields {
		names, _ := memberNames(path) // the paths are valid
		switch value := memberAt(tree, names).(type) {
		case nil:
		case map[string]any:
			for name, member := range value {
				out[ChildPath(path, name)] = member
			}
		default:
			out[path] = value
		}
	}
	if spec.Rollout != nil {
		out[pathPaused] = spec.Rollout.Paused // which JSON leaves out if it is false
	}
	return out
}

// memberAt returns the value of a member below an object, or nil.
func memberAt(tree map[string]any, names []string) any {
	for _, name := range names[:len(names)-1] {
		tree, _ = tree[name].(map[string]any)
	}
	return tree[names[len(names)-1]]
}

// configuredValues returns the values that the fields in operatorFields have without an override, by path.
func (s *Shard) configuredValues(key GroupKey) map[string]any {
	spec := s.settings(s.Groups[key.Tenant][key.Group], nil).spec
	rollout := deref(spec.Rollout)
	spec.Rollout = &rollout
	return operatorValues(spec)
}

// Unset returns the entry of a static group in groups/ without the values at the given paths, so that those of the
// configuration apply. The shard must have its defaults filled in.
func (s *Shard) Unset(key GroupKey, entry GroupSpec, paths []string) GroupSpec {
	var patch Patch
	for _, path := range paths {
		patch, _ = patch.Unset(path) // an invalid path names no field
	}
	out := ReadSettings(string(marshal(MergePatch(treeOf(entry), patch.tree))))
	if len(out.Vars) == 0 {
		out.Vars = nil
	}
	if out.Rollout != nil {
		if slices.Contains(paths, pathPaused) {
			out.Rollout.Paused, _ = s.configuredValues(key)[pathPaused].(bool)
		}
		if out.Rollout.Revision == "" && slices.Contains(paths, pathPaused) {
			out.Rollout = nil
		}
	}
	values := operatorValues(out)
	for path := range out.Overrides {
		if _, has := values[path]; !has || slices.Contains(paths, path) {
			delete(out.Overrides, path)
		}
	}
	if len(out.Overrides) == 0 {
		out.Overrides = nil
	}
	return out
}

// Current returns the entry of a static group in groups/ without what has no effect: values that have ended, and fields
// that operators cannot set. If the time is zero, no value ends because of [Override.Until]. The shard must have its
// defaults filled in.
func (s *Shard) Current(key GroupKey, entry GroupSpec, now time.Time) GroupSpec {
	entry = entry.Override()
	if len(entry.Overrides) == 0 {
		return entry // written by a server that did not write records, so that nothing ends
	}
	configured := s.configuredValues(key)
	var ended []string
	for path := range operatorValues(entry) {
		record, ok := entry.Overrides[path]
		scaled := path == pathSize && record.byScaling() // until the configuration has no scaling
		if ok && record.ended(path, configured[path], now) || !ok && path == pathPaused ||
			scaled && s.Groups[key.Tenant][key.Group].Scaling == nil {
			ended = append(ended, path)
		}
	}
	if len(ended) == 0 {
		return entry
	}
	return s.Unset(key, entry, ended)
}

// Ended describes the values in the entry of a static group in groups/ that have ended at a time, as [Shard.Current]
// removes them: one line for each. The shard must have its defaults filled in.
func (s *Shard) Ended(key GroupKey, entry GroupSpec, now time.Time) (lines []string) {
	entry = entry.Override()
	values, configured := operatorValues(entry), s.configuredValues(key)
	for _, path := range sortedKeys(values) {
		record, ok := entry.Overrides[path]
		if !ok || !record.ended(path, configured[path], now) {
			continue
		}
		why := "the configuration has another value now"
		if until := record.until(); !until.IsZero() && !now.IsZero() && !now.Before(until) {
			why = "its time is over"
		}
		lines = append(lines, SetField{Path: path, Value: values[path], Configured: configured[path],
			Override: record}.EndText(why))
	}
	return lines
}

// In reports whether the field has a path, or is below it.
func (f SetField) In(path string) bool { return within(f.Path, path) }

// EndText says that the field's value ends, and why.
func (f SetField) EndText(why string) string {
	who := cmp.Or(f.By, "an operator")
	if f.At != "" {
		who += " at " + f.At
	}
	return fmt.Sprintf("%s %s, set by %s, ends: %s; configured: %s", f.Path, valueText(f.Value), who, why,
		valueText(f.Configured))
}

// Reset returns the entry of a static group in groups/ without the values of operators. It keeps the revision of a
// roll, because another one would replace all instances. The shard must have its defaults filled in.
func (s *Shard) Reset(key GroupKey, entry GroupSpec) GroupSpec {
	entry = s.Current(key, entry, time.Time{})
	var paths []string
	for path := range operatorValues(entry) {
		if path != pathRevision {
			paths = append(paths, path)
		}
	}
	return s.Unset(key, entry, paths)
}

// Recorded returns the entry of a static group after a change, with a record for each field that it sets. It leaves out
// a value that is not pinned and is that of the configuration. `before` is the entry before the change. The shard must
// have its defaults filled in.
func (s *Shard) Recorded(key GroupKey, before, after GroupSpec, by Caller) GroupSpec {
	had, configured := operatorValues(before), s.configuredValues(key)
	fresh := Override{By: by.Name, At: text(by.At), Until: text(by.Until), Pinned: by.Pinned}
	records := map[string]Override{}
	var same []string
	for path, value := range operatorValues(after) {
		old, was := had[path]
		record, known := before.Overrides[path]
		switch unchanged := was && reflect.DeepEqual(old, value); {
		case unchanged && known && (!slices.Contains(by.Sets, path) || record.Pinned == fresh.Pinned &&
			record.Until == fresh.Until):
		case unchanged && !known && !slices.Contains(by.Sets, path):
			record = Override{Pinned: true}
		default:
			record = fresh
		}
		if path != pathRevision && record.Configured == nil {
			record.Configured = configured[path]
		}
		droppable := path == pathPaused || path != pathRevision && !record.Pinned
		if droppable && reflect.DeepEqual(value, configured[path]) {
			same = append(same, path)
		}
		records[path] = record
	}
	after.Overrides = records
	if len(records) == 0 {
		after.Overrides = nil
	}
	if len(same) == 0 {
		return after
	}
	return s.Unset(key, after, same)
}

// text returns a time in RFC 3339, or "" for the zero time.
func text(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// SetFields returns the fields of a static group that operators have set, sorted by path. The shard must have its
// defaults filled in.
func (s *Shard) SetFields(key GroupKey, entry GroupSpec, now time.Time) []SetField {
	if _, static := s.Groups[key.Tenant][key.Group]; !static || entry.Deleted {
		return nil
	}
	entry = s.Current(key, entry, now)
	values, configured := operatorValues(entry), s.configuredValues(key)
	var out []SetField
	for _, path := range sortedKeys(values) {
		record, ok := entry.Overrides[path]
		if record.Pinned = record.Pinned || !ok; path == pathPaused && values[path] == configured[path] {
			continue
		}
		out = append(out, SetField{Path: path, Value: values[path], Configured: configured[path], Override: record})
	}
	return out
}

// Empty reports whether an entry says nothing.
func (s GroupSpec) Empty() bool { return len(treeOf(s)) == 0 }
