package aws

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/aws"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Tags of every resource that the provider makes, besides the tags of [infra.Tags.Values]. IAM policies and cost
// reports use these names.
const (
	tagPrefix  = contract.TagPrefix
	tagManaged = tagPrefix + "managed"
	tagName    = "Name" // shown in the console; args may set another value
	managed    = "true"
)

// maxTags is the maximum number of tags of one resource.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions
const maxTags = 50

// encodeTags returns the tags of a VM. They depend only on t, so that a repeated request has the same bytes.
func encodeTags(t infra.Tags) map[string]string {
	tags := map[string]string{tagManaged: managed, tagName: t.Instance.String()}
	for name, value := range t.Values() {
		tags[tagPrefix+name] = value
	}
	return tags
}

// decodeTags parses the tags of a VM. It leaves out values that cannot be parsed and lists them in the warning.
func decodeTags(list []types.Tag) (t infra.Tags, warning string) {
	tags := make(map[string]string, len(list))
	for _, tag := range list {
		tags[deref(tag.Key)] = deref(tag.Value)
	}
	return infra.ParseTags(func(name string) string { return tags[tagPrefix+name] })
}

// tagSpecifications returns the tags to set together with the instance. Every resource in ourResources gets the
// provider's tags, and also the tags in args. If both set a tag, the provider's value takes precedence, except for the
// tag Name. The order is deterministic.
func tagSpecifications(mine map[string]string, fromArgs []types.TagSpecification, spot bool) ([]types.TagSpecification,
	error) {
	resources := slices.Clone(ourResources)
	if !spot {
		resources = resources[:len(resources)-1]
	}
	byResource := map[types.ResourceType]map[string]string{}
	for _, resource := range resources {
		byResource[resource] = map[string]string{tagName: mine[tagName]}
	}
	// A spot request has the tags of its instance, unless args have others for it.
	if spot && !slices.ContainsFunc(fromArgs, ofResource(types.ResourceTypeSpotInstancesRequest)) {
		if i := slices.IndexFunc(fromArgs, ofResource(types.ResourceTypeInstance)); i >= 0 {
			fromArgs = append(slices.Clone(fromArgs), types.TagSpecification{
				ResourceType: types.ResourceTypeSpotInstancesRequest, Tags: fromArgs[i].Tags})
		}
	}
	for _, spec := range fromArgs {
		if byResource[spec.ResourceType] == nil {
			byResource[spec.ResourceType] = map[string]string{}
			resources = append(resources, spec.ResourceType)
		}
		for _, tag := range spec.Tags {
			byResource[spec.ResourceType][deref(tag.Key)] = deref(tag.Value)
		}
	}
	var out []types.TagSpecification
	for _, resource := range resources {
		tags := byResource[resource]
		if slices.Contains(ourResources, resource) {
			for key, value := range mine {
				if key != tagName {
					tags[key] = value
				}
			}
		}
		if len(tags) > maxTags {
			return nil, fmt.Errorf("%d tags on %s, at most %d are possible", len(tags), resource, maxTags)
		}
		spec := types.TagSpecification{ResourceType: resource}
		for key, value := range tags {
			if err := contract.CheckTag(key, value); err != nil {
				return nil, err
			}
			spec.Tags = append(spec.Tags, types.Tag{Key: &key, Value: &value})
		}
		slices.SortFunc(spec.Tags, func(a, b types.Tag) int { return cmp.Compare(*a.Key, *b.Key) })
		if len(spec.Tags) > 0 {
			out = append(out, spec)
		}
	}
	return out, nil
}

// ofResource returns a function that reports whether a specification is for a type of resource.
func ofResource(kind types.ResourceType) func(types.TagSpecification) bool {
	return func(spec types.TagSpecification) bool { return spec.ResourceType == kind }
}

// ourResources lists the resources that a create makes and tags. The last resource exists for spot instances only.
var ourResources = []types.ResourceType{types.ResourceTypeInstance, types.ResourceTypeVolume,
	types.ResourceTypeNetworkInterface, types.ResourceTypeSpotInstancesRequest}
