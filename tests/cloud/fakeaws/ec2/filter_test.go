package ec2

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

func TestWildcard(t *testing.T) {
	for _, c := range []struct {
		pattern, value string
		want           bool
	}{
		{"", "", true}, {"", "a", false}, {"a", "a", true}, {"a", "A", false}, {"*", "", true}, {"*", "abc", true},
		{"a*c", "abbc", true}, {"a*c", "abb", false},
		{"?", "", false}, {"?", "a", true}, {"a?c", "abc", true}, {"*b*", "abc", true}, {"a*b*c", "a-b-b-c", true},
		{`\*`, "*", true}, {`\*`, "a", false},
		{`a\?`, "a?", true}, {`a\?`, "ab", false}, {"*ä?", "xäö", true}, {"**", "a", true}, {"*a", "ba", true},
		{"*a", "ab", false},
	} {
		if got := wildcard(c.pattern, c.value); got != c.want {
			t.Errorf("%q against %q: %v", c.pattern, c.value, got)
		}
	}
}

// FuzzWildcard compares wildcard with an equivalent regular expression.
func FuzzWildcard(f *testing.F) {
	f.Add("a*b?c", "axxbyc")
	f.Add(`\**\?`, "*ab?")
	f.Fuzz(func(t *testing.T, pattern, value string) {
		if len(pattern) > 40 || len(value) > 200 || strings.ToValidUTF8(pattern+value, "") != pattern+value {
			return
		}
		var re strings.Builder
		re.WriteString(`(?s)\A`)
		runes := []rune(pattern)
		for i := 0; i < len(runes); i++ {
			switch {
			case runes[i] == '*':
				re.WriteString(".*")
			case runes[i] == '?':
				re.WriteString(".")
			case runes[i] == '\\' && i+1 < len(runes):
				i++
				fallthrough
			default:
				re.WriteString(regexp.QuoteMeta(string(runes[i])))
			}
		}
		re.WriteString(`\z`)
		if want := regexp.MustCompile(re.String()).MatchString(value); wildcard(pattern, value) != want {
			t.Fatalf("%q against %q: want %v", pattern, value, want)
		}
	})
}

func TestDescribe(t *testing.T) {
	w := newTestRegion(t, nil)
	ctx := t.Context()
	for _, zone := range []string{"us-west-2a", "us-west-2b", "us-west-2c"} {
		for _, third := range []string{"10", "11", "20"} {
			id := w.addSubnet("10.0."+third+string(zone[len(zone)-1]-'a'+'0')+".0/24", zone) // such as 10.0.100.0/24
			must(w.client.CreateTags(ctx, &sdk.CreateTagsInput{Resources: []string{id},
				Tags: []types.Tag{{Key: aws.String("third"), Value: aws.String(third)}}}))(t)
		}
	}
	describe := func(filters ...types.Filter) ([]types.Subnet, error) {
		var all []types.Subnet
		pages := sdk.NewDescribeSubnetsPaginator(w.client, &sdk.DescribeSubnetsInput{Filters: filters,
			MaxResults: aws.Int32(5)})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return nil, err
			}
			if len(page.Subnets) > 5 {
				t.Errorf("a page of %d", len(page.Subnets))
			}
			all = append(all, page.Subnets...)
		}
		return all, nil
	}
	filter := func(name string, values ...string) types.Filter { return types.Filter{Name: &name, Values: values} }
	for _, c := range []struct {
		filters []types.Filter
		want    int
	}{
		{nil, 11},
		{[]types.Filter{filter("tag:third", "10")}, 3},
		{[]types.Filter{filter("tag:third", "10", "20")}, 6},
		{[]types.Filter{filter("tag:third", "1?"), filter("availability-zone", "us-west-2a")}, 2},
		{[]types.Filter{filter("tag-key", "thi*")}, 9},
		{[]types.Filter{filter("tag:Third", "10")}, 0},
		{[]types.Filter{filter("cidr-block", "10.0.1.0/24")}, 1},
		{[]types.Filter{filter("vpc-id", "vpc-0123")}, 0},
	} {
		got, err := describe(c.filters...)
		if err != nil || len(got) != c.want {
			t.Errorf("%d subnets for %v: %v", len(got), c.filters, err)
		}
	}
	if _, err := describe(filter("colour", "red")); code(t, err) != "InvalidParameterValue" {
		t.Errorf("a filter that there is not: %v", err)
	}
	for want, in := range map[string]*sdk.DescribeSubnetsInput{
		"InvalidSubnetID.NotFound":    {SubnetIds: []string{w.subnetA, "subnet-00000000000000000"}},
		"InvalidParameterValue":       {MaxResults: aws.Int32(4)},
		"InvalidParameterCombination": {MaxResults: aws.Int32(5), SubnetIds: []string{w.subnetA}},
		"InvalidNextToken":            {NextToken: aws.String("3")},
	} {
		if _, err := w.client.DescribeSubnets(ctx, in); code(t, err) != want {
			t.Errorf("%s, got %v", want, err)
		}
	}
}

func TestEventualConsistency(t *testing.T) {
	w := newTestRegion(t, nil)
	w.faults.SetLag(5 * time.Second)
	w.sleep(time.Minute)
	id := w.addSubnet("10.0.9.0/24", "us-west-2a")
	_, err := w.client.DescribeSubnets(t.Context(), &sdk.DescribeSubnetsInput{SubnetIds: []string{id}})
	if code(t, err) != "InvalidSubnetID.NotFound" {
		t.Errorf("the new subnet by its ID: %v", err)
	}
	if all := must(w.client.DescribeSubnets(t.Context(), &sdk.DescribeSubnetsInput{}))(t).Subnets; len(all) != 2 {
		t.Errorf("%d subnets are seen", len(all))
	}
	w.sleep(5 * time.Second)
	if got := must(w.client.DescribeSubnets(t.Context(), &sdk.DescribeSubnetsInput{SubnetIds: []string{id}}))(
		t).Subnets; len(got) != 1 {
		t.Errorf("%d subnets are seen afterwards", len(got))
	}
}
