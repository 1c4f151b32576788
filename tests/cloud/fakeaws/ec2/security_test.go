package ec2

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

func tcp(port int32, block string) types.IpPermission {
	return types.IpPermission{IpProtocol: aws.String("tcp"), FromPort: &port, ToPort: &port,
		IpRanges: []types.IpRange{{CidrIp: &block}}}
}

func (f *testRegion) authorize(permissions ...types.IpPermission) error {
	_, err := f.client.AuthorizeSecurityGroupIngress(f.Context(), &sdk.AuthorizeSecurityGroupIngressInput{
		GroupId: &f.group, IpPermissions: permissions})
	return err
}

func (f *testRegion) revoke(permissions ...types.IpPermission) error {
	_, err := f.client.RevokeSecurityGroupIngress(f.Context(), &sdk.RevokeSecurityGroupIngressInput{GroupId: &f.group,
		IpPermissions: permissions})
	return err
}

func (f *testRegion) rules(group string) []types.SecurityGroupRule {
	f.Helper()
	return must(f.client.DescribeSecurityGroupRules(f.Context(), &sdk.DescribeSecurityGroupRulesInput{
		Filters: by("group-id", group)}))(f.T).SecurityGroupRules
}

func TestGroups(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	create := func(name, description, vpc string) error {
		in := &sdk.CreateSecurityGroupInput{GroupName: &name, Description: &description}
		if vpc != "" {
			in.VpcId = &vpc
		}
		_, err := w.client.CreateSecurityGroup(ctx, in)
		return err
	}
	want(t, "the name again", create("nodes", "x", w.vpc), "InvalidGroup.Duplicate")
	want(t, "no VPC", create("x", "x", ""), "VPCIdNotSpecified")
	want(t, "a VPC that there is not", create("x", "x", "vpc-0"), "InvalidVpcID.NotFound")
	want(t, "an ID as name", create("sg-x", "x", w.vpc), "InvalidParameterValue")
	want(t, "the reserved name", create("default", "x", w.vpc), "InvalidParameterValue")
	want(t, "a description in Greek", create("x", "ξ", w.vpc), "InvalidParameterValue")
	want(t, "no description", create("x", "", w.vpc), "MissingParameter")
	want(t, "a new name", create("x", "x", w.vpc), "")
	if rules := w.rules(w.group); len(rules) != 2 || !*rules[0].IsEgress || *rules[0].IpProtocol != "-1" ||
		*rules[0].CidrIpv4 != "0.0.0.0/0" || *rules[1].CidrIpv6 != "::/0" {
		t.Errorf("the rules of a new group: %+v", rules)
	}

	remove := func(id string) error {
		_, err := w.client.DeleteSecurityGroup(ctx, &sdk.DeleteSecurityGroupInput{GroupId: &id})
		return err
	}
	want(t, "deleting the default group", remove(w.service.vpcs[w.vpc].defaultGroup), "CannotDelete")
	eni := w.addInterface(w.subnetA).NetworkInterfaceId
	want(t, "deleting one in use", remove(w.group), "DependencyViolation")
	must(w.client.DeleteNetworkInterface(ctx, &sdk.DeleteNetworkInterfaceInput{NetworkInterfaceId: eni}))(t)
	other := must(w.client.CreateSecurityGroup(ctx, &sdk.CreateSecurityGroupInput{GroupName: aws.String("other"),
		Description: aws.String("o"), VpcId: &w.vpc}))(t).GroupId
	must(w.client.AuthorizeSecurityGroupEgress(ctx, &sdk.AuthorizeSecurityGroupEgressInput{GroupId: other,
		IpPermissions: []types.IpPermission{
			{IpProtocol: aws.String("-1"), UserIdGroupPairs: []types.UserIdGroupPair{{GroupId: &w.group}}},
		}}))(t)
	want(t, "deleting one that a rule names", remove(w.group), "DependencyViolation")
	want(t, "deleting the one with the rule", remove(*other), "")
	want(t, "deleting", remove(w.group), "")
	want(t, "deleting again", remove(w.group), "InvalidGroup.NotFound")
	if left := w.rules(w.group); len(left) != 0 {
		t.Errorf("rules of a group that is gone: %+v", left)
	}
}

func TestRules(t *testing.T) {
	w := newTestRegion(t, nil)
	want(t, "a rule", w.authorize(tcp(443, "10.0.0.0/8")), "")
	want(t, "the rule again", w.authorize(tcp(443, "10.0.0.0/8")), "InvalidPermission.Duplicate")
	want(t, "twice in one request", w.authorize(tcp(1, "10.0.0.0/8"), tcp(1, "10.0.0.0/8")), "InvalidParameterValue")
	want(t, "one new and one that there is", w.authorize(tcp(80, "10.0.0.0/8"), tcp(443, "10.0.0.0/8")),
		"InvalidPermission.Duplicate")
	udp := tcp(443, "10.0.0.0/8")
	udp.IpProtocol = aws.String("17")
	want(t, "the same in UDP", w.authorize(udp), "")
	for name, c := range map[string]struct {
		change func(p *types.IpPermission)
		want   string
	}{
		"no ports":          {func(p *types.IpPermission) { p.FromPort = nil }, "InvalidParameterValue"},
		"ports upside down": {func(p *types.IpPermission) { p.ToPort = aws.Int32(1) }, "InvalidParameterValue"},
		"no such port":      {func(p *types.IpPermission) { p.ToPort = aws.Int32(65536) }, "InvalidParameterValue"},
		"no such protocol": {func(p *types.IpPermission) {
			p.IpProtocol = aws.String("tpc")
		}, "InvalidParameterValue"},
		"no block": {func(p *types.IpPermission) {
			p.IpRanges[0].CidrIp = aws.String("10.0.0.0")
		}, "InvalidParameterValue"},
		"IPv6 as IPv4": {func(p *types.IpPermission) {
			p.IpRanges[0].CidrIp = aws.String("::/0")
		}, "InvalidParameterValue"},
		"no peer": {func(p *types.IpPermission) { p.IpRanges = nil }, "MissingParameter"},
		"no such group": {func(p *types.IpPermission) {
			p.UserIdGroupPairs = []types.UserIdGroupPair{{GroupId: aws.String("sg-0")}}
		}, "InvalidGroup.NotFound"},
		"no such prefix list": {func(p *types.IpPermission) {
			p.PrefixListIds = []types.PrefixListId{{PrefixListId: aws.String("pl-0")}}
		}, "InvalidPrefixListID.NotFound"},
		"a wrong description": {func(p *types.IpPermission) {
			p.IpRanges[0].Description = aws.String("<b>")
		}, "InvalidParameterValue"},
		"a long description": {func(p *types.IpPermission) {
			p.IpRanges[0].Description = aws.String(strings.Repeat("x", 256))
		}, "InvalidParameterValue"},
		"all ports of TCP": {func(p *types.IpPermission) {
			p.FromPort, p.ToPort = aws.Int32(-1), aws.Int32(-1)
		}, ""},
		"a protocol by number": {func(p *types.IpPermission) { p.IpProtocol = aws.String("50") }, ""},
	} {
		p := tcp(9000, "10.0.0.0/8")
		c.change(&p)
		want(t, name, w.authorize(p), c.want)
	}
	if n := len(w.rules(w.group)); n != 2+4 {
		t.Errorf("%d rules: a refused call left a trace", n)
	}

	want(t, "revoking what there is not", w.revoke(tcp(443, "10.0.0.0/9")), "InvalidPermission.NotFound")
	want(t, "revoking one that there is and one that is not", w.revoke(tcp(443, "10.0.0.0/8"), tcp(1, "10.0.0.0/8")),
		"InvalidPermission.NotFound")
	want(t, "revoking", w.revoke(tcp(443, "10.0.0.0/8")), "")
	want(t, "revoking again", w.revoke(tcp(443, "10.0.0.0/8")), "InvalidPermission.NotFound")
	many := make([]types.IpPermission, maxRules-3)
	for i := range many {
		many[i] = tcp(int32(1000+i), "10.0.0.0/8")
	}
	want(t, "sixty rules", w.authorize(many...), "")
	want(t, "one more", w.authorize(tcp(1, "10.0.0.0/8")), "RulesPerSecurityGroupLimitExceeded")
}

// TestPermissions checks the rules of a security group as a list of IpPermission. One IpPermission must contain all
// peers with the same protocol and ports.
func TestPermissions(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	out := must(w.client.AuthorizeSecurityGroupIngress(ctx, &sdk.AuthorizeSecurityGroupIngressInput{
		GroupId: &w.group,
		IpPermissions: []types.IpPermission{{
			IpProtocol: aws.String("tcp"), FromPort: aws.Int32(80), ToPort: aws.Int32(81),
			IpRanges: []types.IpRange{{CidrIp: aws.String("10.1.2.3/8"), Description: aws.String("a")},
				{CidrIp: aws.String("11.0.0.0/8")}},
			Ipv6Ranges:       []types.Ipv6Range{{CidrIpv6: aws.String("2a00::/16")}},
			UserIdGroupPairs: []types.UserIdGroupPair{{GroupId: &w.group}},
			PrefixListIds:    []types.PrefixListId{{PrefixListId: aws.String("pl-68a54001")}},
		}},
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeSecurityGroupRule,
			Tags: []types.Tag{tag("a", "b")}}},
	}))(t)
	if len(out.SecurityGroupRules) != 5 || *out.SecurityGroupRules[0].Tags[0].Value != "b" {
		t.Fatalf("the rules made: %+v", out.SecurityGroupRules)
	}
	got := must(w.client.DescribeSecurityGroups(ctx, &sdk.DescribeSecurityGroupsInput{Filters: by("ip-permission.cidr",
		"10.0.0.0/8")}))(t).SecurityGroups
	if len(got) != 1 || len(got[0].IpPermissions) != 1 {
		t.Fatalf("the group: %+v", got)
	}
	p := got[0].IpPermissions[0]
	if fmt.Sprint(*p.FromPort, *p.ToPort, len(p.IpRanges), len(p.Ipv6Ranges), len(p.UserIdGroupPairs),
		len(p.PrefixListIds)) != "80 81 2 1 1 1" ||
		*p.IpRanges[0].CidrIp != "10.0.0.0/8" || *p.IpRanges[0].Description != "a" {
		t.Errorf("the permission: %+v", p)
	}

	id := out.SecurityGroupRules[slices.IndexFunc(out.SecurityGroupRules, func(r types.SecurityGroupRule) bool {
		return r.CidrIpv6 != nil
	})].SecurityGroupRuleId
	rule := must(w.client.DescribeSecurityGroupRules(ctx, &sdk.DescribeSecurityGroupRulesInput{
		SecurityGroupRuleIds: []string{*id}}))(t).SecurityGroupRules[0]
	if *rule.IpProtocol != "tcp" || aws.ToString(rule.CidrIpv6) != "2a00::/16" || rule.CidrIpv4 != nil {
		t.Errorf("the rule: %+v", rule)
	}
	must(w.client.RevokeSecurityGroupIngress(ctx, &sdk.RevokeSecurityGroupIngressInput{GroupId: &w.group,
		SecurityGroupRuleIds: []string{*id}}))(t)
	_, err := w.client.DescribeSecurityGroupRules(ctx, &sdk.DescribeSecurityGroupRulesInput{
		SecurityGroupRuleIds: []string{*id}})
	want(t, "a rule that is gone", err, "InvalidSecurityGroupRuleId.NotFound")
}
