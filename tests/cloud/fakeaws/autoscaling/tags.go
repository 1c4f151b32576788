package autoscaling

import (
	"net/http"
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

// propagated returns the tags that the group's instances get.
func (g *group) propagated() map[string]string {
	out := map[string]string{"aws:autoscaling:groupName": g.name}
	for _, t := range g.tags {
		if value(t.PropagateAtLaunch) {
			out[t.Key] = t.Value
		}
	}
	return out
}

// checkTags refuses invalid tags, too many tags, and tags for a resource other than the group.
func (s *Service) checkTags(g *group, tags []tag) error {
	keys := map[string]bool{}
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

// requestTags returns the condition keys of tags in a request.
func requestTags(tags []tag) policy.Context {
	c := policy.Context{}
	for _, t := range tags {
		c["aws:RequestTag/"+t.Key] = []string{t.Value}
		c["aws:TagKeys"] = append(c["aws:TagKeys"], t.Key)
	}
	return c
}
