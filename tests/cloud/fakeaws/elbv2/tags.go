package elbv2

import (
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// maxTags is the maximum number of tags on a resource.
const maxTags = 50

// Tag is a label of a resource.
type Tag struct {
	Key   string
	Value string
}

// requestTags returns the IAM condition keys of the tags in a request.
func requestTags(tags []Tag) policy.Context {
	conditions := policy.Context{}
	for _, tag := range tags {
		conditions["aws:RequestTag/"+tag.Key] = []string{tag.Value}
		conditions["aws:TagKeys"] = append(conditions["aws:TagKeys"], tag.Key)
	}
	return conditions
}

// checkTags checks the tags of a new resource.
func checkTags(tags []Tag) error {
	seen := map[string]bool{}
	for _, tag := range tags {
		switch {
		case tag.Key == "" || len(tag.Key) > 128 || len(tag.Value) > 256:
			return invalid("Tag keys must be between 1 and 128 characters, values at most 256")
		case strings.HasPrefix(strings.ToLower(tag.Key), "aws:"):
			return invalid("Tag keys starting with 'aws:' are reserved for system use")
		case seen[tag.Key]:
			return wire.Errorf(400, "DuplicateTagKeys", "Tag key '%s' was specified more than once", tag.Key)
		}
		seen[tag.Key] = true
	}
	if len(tags) > maxTags {
		return wire.Errorf(400, "TooManyTags", "The limit of %d tags per resource has been reached", maxTags)
	}
	return nil
}

func (s *Service) setTags(arn string, tags []Tag) {
	s.tags[arn] = map[string]string{}
	for _, tag := range tags {
		s.tags[arn][tag.Key] = tag.Value
	}
}

// checkExists returns AWS's error if no resource has the ARN.
func (s *Service) checkExists(arn string) error {
	var err error
	switch rest := strings.TrimPrefix(arn, "arn:aws:elasticloadbalancing:"+s.cfg.Region+":"+s.cfg.Account+":"); {
	case strings.HasPrefix(rest, "loadbalancer/"):
		_, err = s.balancer(arn)
	case strings.HasPrefix(rest, "targetgroup/"):
		_, err = s.group(arn)
	case strings.HasPrefix(rest, "listener/"):
		_, err = s.listener(arn)
	default:
		err = invalid("'%s' is not a valid ARN", arn)
	}
	return err
}

type tagDescription struct {
	ResourceArn string
	Tags        []Tag `xml:"Tags>member"`
}

func (s *Service) describeTags(c *wire.Call) (any, error) {
	var in struct{ ResourceArns []string }
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if len(in.ResourceArns) == 0 || len(in.ResourceArns) > 20 {
		return nil, invalid("Between 1 and 20 resource ARNs are required")
	}
	if err := s.allow(c, "*", nil); err != nil {
		return nil, err
	}
	var out struct {
		TagDescriptions []tagDescription `xml:"TagDescriptions>member"`
	}
	for _, arn := range in.ResourceArns {
		if err := s.checkExists(arn); err != nil {
			return nil, err
		}
		d := tagDescription{ResourceArn: arn}
		for key, value := range s.tags[arn] {
			d.Tags = append(d.Tags, Tag{Key: key, Value: value})
		}
		slices.SortFunc(d.Tags, func(a, b Tag) int { return strings.Compare(a.Key, b.Key) })
		out.TagDescriptions = append(out.TagDescriptions, d)
	}
	return out, nil
}
