package aws

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/aws"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

func tagMap(specs []types.TagSpecification) map[string]map[string]string {
	out := map[string]map[string]string{}
	for _, spec := range specs {
		out[string(spec.ResourceType)] = map[string]string{}
		for _, tag := range spec.Tags {
			out[string(spec.ResourceType)][*tag.Key] = *tag.Value
		}
	}
	return out
}

func TestTagsOfARequest(t *testing.T) {
	tags := request().Tags
	id := tags.Instance.String()
	want := map[string]string{
		"nstance:managed": "true", "nstance:cluster": "c", "nstance:shard": "s", "nstance:tenant": "default",
		"nstance:instance-id": id, "nstance:term": "3",
		"nstance:infra-hash": "abc", "nstance:group": "g", "nstance:template": "t", "nstance:kind": "knd",
		"nstance:on-demand":  "false",
		"nstance:created-at": "2030-01-02T03:04:05.006Z", "Name": id,
	}
	specs, err := tagSpecifications(encodeTags(tags, tags.Instance.String()), nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]map[string]string{"instance": want, "volume": want, "network-interface": want},
		tagMap(specs)); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	spot, err := tagSpecifications(encodeTags(tags, tags.Instance.String()), []types.TagSpecification{
		{ResourceType: "instance", Tags: []types.Tag{{Key: ptr("Name"), Value: ptr("mine")},
			{Key: ptr("team"), Value: ptr("a")}, {Key: ptr("nstance:shard"), Value: ptr("x")}}},
		{ResourceType: "elastic-gpu", Tags: []types.Tag{{Key: ptr("team"), Value: ptr("b")}}},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	got := tagMap(spot)
	// A spot request has the tags of its instance.
	if diff := cmp.Diff(got["instance"], got["spot-instances-request"]); diff != "" {
		t.Errorf("tags of a spot request (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, got["volume"]); diff != "" {
		t.Errorf("tags of a volume (-want +got):\n%s", diff)
	}
	if i := got["instance"]; i["Name"] != "mine" || i["team"] != "a" || i["nstance:shard"] != "s" ||
		len(i) != len(want)+1 {
		t.Errorf("tags of an instance: %v", i)
	}
	spot, err = tagSpecifications(encodeTags(tags, tags.Instance.String()), []types.TagSpecification{
		{ResourceType: "instance", Tags: []types.Tag{{Key: ptr("team"), Value: ptr("a")},
			{Key: ptr("x"), Value: ptr("y")}}},
		{ResourceType: "spot-instances-request", Tags: []types.Tag{{Key: ptr("team"), Value: ptr("b")}}},
		{ResourceType: "elastic-gpu"},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	own, without := maps.Clone(want), tagMap(spot)
	own["team"] = "b"
	if diff := cmp.Diff(own, without["spot-instances-request"]); diff != "" {
		t.Errorf("tags that args have for the spot request (-want +got):\n%s", diff)
	}
	if _, sent := without["elastic-gpu"]; sent { // EC2 refuses an empty specification
		t.Errorf("a specification without tags: %v", without)
	}
	if diff := cmp.Diff(map[string]string{"team": "b"}, got["elastic-gpu"]); diff != "" {
		t.Errorf("tags of something that is not ours (-want +got):\n%s", diff)
	}
}

func TestTagLimits(t *testing.T) {
	for value, ok := range map[string]bool{
		strings.Repeat("ü", 256): true, strings.Repeat("a", 257): false, "": true, "line\nbreak": false, "\xff": false,
		"grüße 🙂 <&>'\"": true, "\u0085": false,
	} {
		tags := request().Tags
		tags.Group = value
		if _, err := tagSpecifications(encodeTags(tags, tags.Instance.String()), nil, false); (err == nil) != ok {
			t.Errorf("group %q: %v", value, err)
		}
	}
	if err := contract.CheckTag(strings.Repeat("k", 129), ""); err == nil {
		t.Error("a key of 129 characters was taken")
	}
	if err := contract.CheckTag("", ""); err == nil {
		t.Error("an empty key was taken")
	}
	spot := request().Tags
	spot.Spot = true
	if n := len(encodeTags(spot, spot.Instance.String())); n != contract.ServerTags {
		t.Errorf("the server adds %d tags, and the checks of configurations count %d", n, contract.ServerTags)
	}
	var many []types.Tag
	for i := range 50 - 13 {
		many = append(many, types.Tag{Key: ptr(fmt.Sprint("k", i)), Value: ptr("")})
	}
	tags := encodeTags(request().Tags, request().Tags.Instance.String())
	_, err := tagSpecifications(tags, []types.TagSpecification{{ResourceType: "instance", Tags: many}}, false)
	if err != nil {
		t.Errorf("50 tags: %v", err)
	}
	many = append(many, types.Tag{Key: ptr("one more"), Value: ptr("")})
	_, err = tagSpecifications(tags, []types.TagSpecification{{ResourceType: "instance", Tags: many}}, false)
	if err == nil {
		t.Error("51 tags were taken")
	}
}

func TestTagsReadBack(t *testing.T) {
	tags := request().Tags
	tags.OnDemand = true
	specs, err := tagSpecifications(encodeTags(tags, tags.Instance.String()), nil, false)
	if err != nil {
		t.Fatal(err)
	}
	got, warning := decodeTags(types.Instance{Tags: specs[0].Tags})
	if diff := cmp.Diff(tags, got, cmp.AllowUnexported(ident.ID{})); diff != "" || warning != "" {
		t.Errorf("tags (-want +got), warning %q:\n%s", warning, diff)
	}
	got, warning = decodeTags(types.Instance{Tags: []types.Tag{{Key: ptr("nstance:instance-id"), Value: ptr("x")},
		{Key: ptr("nstance:term"), Value: ptr("-1")}, {Key: ptr("nstance:created-at"), Value: ptr("now")},
		{Key: ptr("nstance:on-demand"), Value: ptr("maybe")}, {Key: ptr("nstance:cluster"), Value: ptr("c")}}})
	if diff := cmp.Diff(infra.Tags{Owner: infra.Owner{Cluster: "c"}}, got,
		cmp.AllowUnexported(ident.ID{})); diff != "" || strings.Count(warning, ";") != 3 {
		t.Errorf("odd tags, warning %q:\n%s", warning, diff)
	}
}
