package autoscaling

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// tag is a group's tag in requests.
type tag struct {
	Key               string
	PropagateAtLaunch *bool
	ResourceId        string
	ResourceType      string
	Value             string
}

type tagDescription struct {
	Key               string
	PropagateAtLaunch bool
	ResourceId        string
	ResourceType      string
	Value             string
}

func (g *group) tagDescriptions() []tagDescription {
	var out []tagDescription
	for _, t := range g.tags {
		out = append(out, tagDescription{t.Key, value(t.PropagateAtLaunch), g.name, "auto-scaling-group", t.Value})
	}
	return out
}

// propagated are the tags of instances.
func (g *group) propagated() map[string]string {
	out := map[string]string{"aws:autoscaling:groupName": g.name}
	for _, t := range g.tags {
		if value(t.PropagateAtLaunch) {
			out[t.Key] = t.Value
		}
	}
	return out
}

func (g *group) setTags(tags []tag) {
	for _, t := range tags {
		g.tags = slices.DeleteFunc(g.tags, func(old tag) bool { return old.Key == t.Key })
		g.tags = append(g.tags, t)
	}
	slices.SortFunc(g.tags, func(a, b tag) int { return strings.Compare(a.Key, b.Key) })
}

// checkTags refuses tags of something else, and too many.
func (s *Service) checkTags(g *group, tags []tag) error {
	keys := map[string]bool{}
	for _, t := range g.tags {
		keys[t.Key] = true
	}
	for _, t := range tags {
		switch {
		case t.Key == "" || len(t.Key) > 128 || len(t.Value) > 256:
			return invalid("The tag key '%s' or its value has a wrong length", t.Key)
		case strings.HasPrefix(strings.ToLower(t.Key), "aws:"):
			return invalid("Tag keys that start with 'aws:' are reserved for system use.")
		case t.ResourceType != "" && t.ResourceType != "auto-scaling-group":
			return invalid("Invalid tag resource type: %s. Must be \"auto-scaling-group\".", t.ResourceType)
		case t.ResourceId != "" && t.ResourceId != g.name:
			return invalid("The tag's resource '%s' is not the group", t.ResourceId)
		}
		keys[t.Key] = true
	}
	if len(keys) > 50 {
		return wire.Errorf(http.StatusBadRequest, "LimitExceeded", "A group can have at most 50 tags")
	}
	return nil
}

// requestTags are the condition keys of tags in a request.
func requestTags(tags []tag) policy.Context {
	c := policy.Context{}
	for _, t := range tags {
		c["aws:RequestTag/"+t.Key] = []string{t.Value}
		c["aws:TagKeys"] = append(c["aws:TagKeys"], t.Key)
	}
	return c
}

func (s *Service) tagOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"CreateOrUpdateTags": s.createTags,
		"DeleteTags":         s.deleteTags,
		"DescribeTags":       s.describeTags,
	}
}

// tagged reads a request with tags of groups, asks for permission on each group, and does something to all tags when
// all of them may be touched.
func (s *Service) tagged(c *wire.Call, check bool, do func(g *group, t tag)) (any, error) {
	var in struct{ Tags []tag }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if len(in.Tags) == 0 {
		return nil, s.unknown(c, "*", invalid("Tags must be specified"))
	}
	var groups []*group
	for _, t := range in.Tags {
		g, err := s.group(t.ResourceId)
		if err != nil {
			return nil, s.unknown(c, t.ResourceId, err)
		}
		if err := s.allow(c, g, requestTags(in.Tags)); err != nil {
			return nil, err
		}
		if check {
			if err := s.checkTags(g, []tag{t}); err != nil {
				return nil, err
			}
		}
		groups = append(groups, g)
	}
	for i, t := range in.Tags {
		do(groups[i], t)
	}
	return nil, nil
}

func (s *Service) createTags(c *wire.Call) (any, error) {
	return s.tagged(c, true, func(g *group, t tag) { g.setTags([]tag{t}) })
}

func (s *Service) deleteTags(c *wire.Call) (any, error) {
	return s.tagged(c, false, func(g *group, t tag) {
		g.tags = slices.DeleteFunc(g.tags, func(old tag) bool { return old.Key == t.Key })
	})
}

func (s *Service) describeTags(c *wire.Call) (any, error) {
	var in struct {
		Filters    []filter
		MaxRecords *int
		NextToken  string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := allowAny(c); err != nil {
		return nil, err
	}
	var found []tagDescription
	for _, g := range s.sorted() {
		for _, t := range g.tagDescriptions() {
			have := map[string]string{"auto-scaling-group": t.ResourceId, "key": t.Key, "value": t.Value,
				"propagate-at-launch": boolText(t.PropagateAtLaunch)}
			all := true
			for _, f := range in.Filters {
				if _, known := have[f.Name]; !known {
					return nil, invalid("Filter type %s is not correct. Allowed Filter types are: %s", f.Name,
						strings.Join(slices.Sorted(maps.Keys(have)), " "))
				}
				all = all && slices.Contains(f.Values, have[f.Name])
			}
			if all {
				found = append(found, t)
			}
		}
	}
	items, next, err := page(found, in.MaxRecords, in.NextToken)
	if err != nil {
		return nil, err
	}
	return struct {
		Tags      []tagDescription `xml:"Tags>member"`
		NextToken string           `xml:",omitempty"`
	}{items, next}, nil
}
