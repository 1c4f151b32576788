package ec2

import (
	"maps"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Limits of tags.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions
const (
	maxTags     = 50
	maxTagKey   = 128
	maxTagValue = 256
)

// Tag is a tag in requests and answers.
type Tag struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

// TagSpecification holds the tags of resources that a call creates.
type TagSpecification struct {
	ResourceType string
	Tag          []Tag
}

// Tags returns a copy of a resource's tags. The map is never nil.
func (s *Service) Tags(id string) map[string]string {
	tags := maps.Clone(s.tags[id])
	if tags == nil {
		tags = map[string]string{}
	}
	return tags
}

// SetTags adds tags to a resource without AWS's checks, because other services set keys that begin with "aws:".
func (s *Service) SetTags(id string, tags map[string]string) {
	if len(tags) == 0 {
		return
	}
	if s.tags[id] == nil {
		s.tags[id] = map[string]string{}
	}
	maps.Copy(s.tags[id], tags)
}

// setTags replaces the tags of a resource. An empty map removes them all.
func (s *Service) setTags(id string, tags map[string]string) {
	delete(s.tags, id)
	s.SetTags(id, tags)
}

// tagList returns the tags of a resource as answers list them.
func (s *Service) tagList(id string) []Tag { return listTags(s.tags[id]) }

func listTags(tags map[string]string) []Tag {
	list := make([]Tag, 0, len(tags))
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		list = append(list, Tag{Key: key, Value: tags[key]})
	}
	return list
}

// specified returns the tags that a call gives to new resources of one type. Tags for another type are an error,
// because the call creates no resource of that type. Tags for the types in allowed are ignored instead.
func specified(specs []TagSpecification, resourceType string, allowed ...string) (map[string]string, error) {
	tags := map[string]string{}
	for _, spec := range specs {
		if spec.ResourceType == "" {
			return nil, failf("InvalidParameterValue", "Tag specification resource type must have a value")
		}
		if spec.ResourceType != resourceType && !slices.Contains(allowed, spec.ResourceType) {
			return nil, failf("InvalidParameterValue", "'%s' is not a valid taggable resource type for this operation.",
				spec.ResourceType)
		}
		if spec.ResourceType != resourceType {
			continue
		}
		checked, err := checkTags(spec.Tag)
		if err != nil {
			return nil, err
		}
		maps.Copy(tags, checked)
	}
	if len(tags) > maxTags {
		return nil, failf("TagLimitExceeded", "More than %d tags specified", maxTags)
	}
	return tags, nil
}

func checkTags(list []Tag) (map[string]string, error) {
	tags := map[string]string{}
	for _, tag := range list {
		switch {
		case tag.Key == "":
			return nil, failf("InvalidParameterValue", "Tag key must have a length greater than zero")
		case len([]rune(tag.Key)) > maxTagKey:
			return nil, failf("InvalidParameterValue", "Tag key exceeds the maximum length of %d characters", maxTagKey)
		case len([]rune(tag.Value)) > maxTagValue:
			return nil, failf("InvalidParameterValue", "Tag value exceeds the maximum length of %d characters",
				maxTagValue)
		case strings.HasPrefix(strings.ToLower(tag.Key), "aws:"):
			return nil, failf("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
		}
		if _, twice := tags[tag.Key]; twice {
			return nil, failf("InvalidParameterValue", "Duplicate tag key '%s' specified.", tag.Key)
		}
		tags[tag.Key] = tag.Value
	}
	return tags, nil
}

func (s *Service) tagOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"CreateTags":   s.createTags,
		"DeleteTags":   s.deleteTags,
		"DescribeTags": s.describeTags,
	}
}

func (s *Service) createTags(c *wire.Call) (any, error) {
	var in struct {
		ResourceId []string
		Tag        []Tag
	}
	if err := wire.Decode(c.Form, &in); err != nil {
		return nil, err
	}
	tags, err := checkTags(in.Tag)
	if err != nil {
		return nil, err
	}
	if err := s.allowTagging(c, "CreateTags", in.ResourceId, requestTags(tags)); err != nil {
		return nil, err
	}
	if len(tags) == 0 {
		return nil, missing("Tag")
	}
	for _, id := range in.ResourceId {
		if err := s.exists(id); err != nil {
			return nil, err
		}
		after := s.Tags(id)
		maps.Copy(after, tags)
		own := 0
		for key := range after {
			if !strings.HasPrefix(key, "aws:") {
				own++
			}
		}
		if own > maxTags {
			return nil, failf("TagLimitExceeded", "You have reached the maximum number of tags on a resource (%d)",
				maxTags)
		}
	}
	for _, id := range in.ResourceId {
		s.SetTags(id, tags)
	}
	return ok, nil
}

func (s *Service) deleteTags(c *wire.Call) (any, error) {
	var in struct {
		ResourceId []string
		Tag        []struct {
			Key   string
			Value *string
		}
	}
	if err := wire.Decode(c.Form, &in); err != nil {
		return nil, err
	}
	keys := policy.Context{}
	for _, tag := range in.Tag {
		keys["aws:TagKeys"] = append(keys["aws:TagKeys"], tag.Key)
		if tag.Value != nil {
			keys["aws:RequestTag/"+tag.Key] = []string{*tag.Value}
		}
	}
	if err := s.allowTagging(c, "DeleteTags", in.ResourceId, keys); err != nil {
		return nil, err
	}
	for _, tag := range in.Tag {
		if strings.HasPrefix(tag.Key, "aws:") {
			return nil, failf("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
		}
	}
	for _, id := range in.ResourceId {
		if len(in.Tag) == 0 { // without keys, all tags except AWS's own are removed
			maps.DeleteFunc(s.tags[id], func(key, _ string) bool { return !strings.HasPrefix(key, "aws:") })
		}
		for _, tag := range in.Tag {
			// If the request gives a value for a tag, even an empty one, the tag is removed only if its value is the
			// same.
			if value, has := s.tags[id][tag.Key]; has && (tag.Value == nil || *tag.Value == value) {
				delete(s.tags[id], tag.Key)
			}
		}
	}
	return ok, nil
}

func (s *Service) allowTagging(c *wire.Call, action string, ids []string, keys policy.Context) error {
	if len(ids) == 0 {
		if err := s.allowAny(c, action); err != nil {
			return err
		}
		return missing("resourceIdSet")
	}
	for _, id := range ids {
		context := s.conditions(id)
		maps.Copy(context, keys)
		arn := s.ARN(id)
		if arn == "" {
			arn = "*"
		}
		if err := c.Authorize("ec2:"+action, arn, context); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) describeTags(c *wire.Call) (any, error) {
	var in struct {
		Filter     []Filter
		MaxResults int
		NextToken  string
	}
	if err := wire.Decode(c.Form, &in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeTags"); err != nil {
		return nil, err
	}
	type item struct {
		ResourceID   string `xml:"resourceId"`
		ResourceType string `xml:"resourceType"`
		Tag
	}
	var items []item
	for _, id := range slices.Sorted(maps.Keys(s.tags)) {
		k, ok := s.kind(id)
		if !ok {
			continue
		}
		for _, tag := range s.tagList(id) {
			match, err := matches(in.Filter, nil, func(name string) ([]string, bool) {
				switch name {
				case "resource-id":
					return []string{id}, true
				case "resource-type":
					return []string{k.name}, true
				case "key":
					return []string{tag.Key}, true
				case "value":
					return []string{tag.Value}, true
				}
				return nil, false
			})
			if err != nil {
				return nil, err
			}
			if match {
				items = append(items, item{ResourceID: id, ResourceType: k.name, Tag: tag})
			}
		}
	}
	page, next, err := paged(items, in.MaxResults, in.NextToken)
	if err != nil {
		return nil, err
	}
	return struct {
		Items []item `xml:"tagSet>item"`
		Next  string `xml:"nextToken,omitempty"`
	}{page, next}, nil
}
