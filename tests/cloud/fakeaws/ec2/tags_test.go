package ec2

import (
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
)

func tag(key, value string) types.Tag { return types.Tag{Key: &key, Value: &value} }

func TestTags(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	made := must(w.client.CreateInternetGateway(ctx,
		&sdk.CreateInternetGatewayInput{TagSpecifications: []types.TagSpecification{
			{ResourceType: types.ResourceTypeInternetGateway, Tags: []types.Tag{tag("a", "1"), tag("b", "")}},
		}}))(t)
	id := *made.InternetGateway.InternetGatewayId
	w.service.SetTags(id, map[string]string{"aws:own": "yes"})
	create := func(tags ...types.Tag) error {
		_, err := w.client.CreateTags(ctx, &sdk.CreateTagsInput{Resources: []string{id}, Tags: tags})
		return err
	}
	if err := create(tag("a", "2"), tag("c", "3")); err != nil {
		t.Fatal(err)
	}
	check := func(what string, want map[string]string) {
		t.Helper()
		got := map[string]string{}
		in := &sdk.DescribeTagsInput{Filters: []types.Filter{{Name: aws.String("resource-id"), Values: []string{id}}}}
		for _, x := range must(w.client.DescribeTags(ctx, in))(t).Tags {
			if x.ResourceType != types.ResourceTypeInternetGateway {
				t.Errorf("a tag of a %s", x.ResourceType)
			}
			got[*x.Key] = *x.Value
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	check("made and changed", map[string]string{"a": "2", "b": "", "c": "3", "aws:own": "yes"})

	many := make([]types.Tag, 48)
	for i := range many {
		many[i] = tag(fmt.Sprint("many", i), "")
	}
	for name, c := range map[string]struct {
		tags []types.Tag
		want string
	}{
		"reserved":     {[]types.Tag{tag("aws:x", "")}, "InvalidParameterValue"},
		"no key":       {[]types.Tag{tag("", "")}, "InvalidParameterValue"},
		"long key":     {[]types.Tag{tag(strings.Repeat("ä", 129), "")}, "InvalidParameterValue"},
		"long value":   {[]types.Tag{tag("k", strings.Repeat("v", 257))}, "InvalidParameterValue"},
		"same twice":   {[]types.Tag{tag("k", "1"), tag("k", "2")}, "InvalidParameterValue"},
		"one too many": {many, "TagLimitExceeded"}, // 3 and 48, without AWS's own tags
	} {
		if got := code(t, create(c.tags...)); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
	if err := create(many[:47]...); err != nil {
		t.Errorf("50 tags: %v", err)
	}

	remove := func(tags ...types.Tag) {
		t.Helper()
		must(w.client.DeleteTags(ctx, &sdk.DeleteTagsInput{Resources: []string{id}, Tags: tags}))(t)
	}
	for _, x := range many[:47] {
		remove(types.Tag{Key: x.Key})
	}
	remove(tag("a", "other"), types.Tag{Key: aws.String("b")})
	check("b removed, a has another value", map[string]string{"a": "2", "c": "3", "aws:own": "yes"})
	remove(tag("a", "2"))
	check("a removed by its value", map[string]string{"c": "3", "aws:own": "yes"})
	remove()
	check("all removed but AWS's own", map[string]string{"aws:own": "yes"})

	for id, want := range map[string]string{
		"igw-00000000000000000": "InvalidInternetGatewayID.NotFound",
		"eni-00000000000000000": "InvalidNetworkInterfaceID.NotFound", "what": "InvalidID",
	} {
		_, err := w.client.CreateTags(ctx, &sdk.CreateTagsInput{Resources: []string{id},
			Tags: []types.Tag{tag("a", "b")}})
		if code(t, err) != want {
			t.Errorf("tags for %s: %v", id, err)
		}
	}
	_, err := w.client.CreateInternetGateway(ctx,
		&sdk.CreateInternetGatewayInput{TagSpecifications: []types.TagSpecification{
			{ResourceType: types.ResourceTypeVpc, Tags: []types.Tag{tag("a", "1")}},
		}})
	if code(t, err) != "InvalidParameterValue" {
		t.Errorf("tags of another type: %v", err)
	}
	must(w.client.DeleteInternetGateway(ctx, &sdk.DeleteInternetGatewayInput{InternetGatewayId: &id}))(t)
	check("gone with the gateway", map[string]string{})
}

// TestTagOnCreateAsks checks that creation with tags also needs ec2:CreateTags. The condition key ec2:CreateAction must
// then be the name of the operation that creates the resource.
func TestTagOnCreateAsks(t *testing.T) {
	w := newTestRegion(t, nil)
	in := &sdk.CreateVpcInput{CidrBlock: aws.String("10.9.0.0/16"), TagSpecifications: []types.TagSpecification{
		{ResourceType: types.ResourceTypeVpc, Tags: []types.Tag{tag("Name", "x"), tag("own", "y")}},
	}}
	w.deny = func(a asked) bool { return a.action == "ec2:CreateTags" }
	if _, err := w.client.CreateVpc(t.Context(), in); code(t, err) != "UnauthorizedOperation" {
		t.Errorf("without ec2:CreateTags: %v", err)
	}
	if len(w.asked) != 2 {
		t.Fatalf("asked: %+v", w.asked)
	}
	got := w.asked[1]
	if got.resource != "arn:aws:ec2:us-west-2:123456789012:vpc/*" {
		t.Errorf("asked on %s", got.resource)
	}
	for key, want := range map[string][]string{
		"ec2:CreateAction": {"CreateVpc"}, "aws:RequestTag/Name": {"x"}, "aws:RequestTag/own": {"y"},
		"aws:TagKeys": {"Name", "own"}, "ec2:Region": {"us-west-2"},
	} {
		if diff := cmp.Diff(want, got.context[key]); diff != "" {
			t.Errorf("%s: %s", key, diff)
		}
	}
	if all := must(w.client.DescribeVpcs(t.Context(), &sdk.DescribeVpcsInput{}))(t).Vpcs; len(all) != 1 {
		t.Errorf("%d VPCs after the refusal", len(all))
	}
}
