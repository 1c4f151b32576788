package ssm_test

import (
	"errors"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ssm"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func serve(t *testing.T) *sdk.Client {
	t.Helper()
	server := httptest.NewServer(wire.Handle(ssm.New("us-west-2", "123456789012"), "123456789012", "us-west-2",
		&sync.Mutex{}))
	t.Cleanup(server.Close)
	return sdk.New(sdk.Options{
		Region: "us-west-2", BaseEndpoint: aws.String(server.URL), RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider("AKIAEXAMPLE", "secret", ""),
	})
}

func str(s string) *string { return &s }

func must[T any](out T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

func fails[T any](_ T, err error) func(t *testing.T, code string) {
	return func(t *testing.T, code string) {
		t.Helper()
		var api smithy.APIError
		if !errors.As(err, &api) || api.ErrorCode() != code {
			t.Fatalf("got %v, want %s", err, code)
		}
	}
}

func TestVersions(t *testing.T) {
	c, ctx := serve(t), t.Context()
	put := &sdk.PutParameterInput{Name: str("/nstance/alpha/key"), Value: str("one"),
		Type: types.ParameterTypeSecureString, Description: str("d"), Tags: []types.Tag{{Key: str("k"),
			Value: str("v")}}}
	if out := must(c.PutParameter(ctx, put))(t); out.Version != 1 || out.Tier != types.ParameterTierStandard {
		t.Errorf("put %+v", out)
	}
	fails(c.PutParameter(ctx, put))(t, "ParameterAlreadyExists")
	put.Overwrite = aws.Bool(true)
	fails(c.PutParameter(ctx, put))(t, "ValidationException") // Tags need a new parameter.
	put.Tags, put.Value, put.Description = nil, str("two"), nil
	if out := must(c.PutParameter(ctx, put))(t); out.Version != 2 {
		t.Errorf("put %+v", out)
	}
	fails(c.PutParameter(ctx, &sdk.PutParameterInput{Name: put.Name, Value: str("x"), Type: types.ParameterTypeString,
		Overwrite: aws.Bool(true)}))(t, "HierarchyTypeMismatchException")

	for name, want := range map[string]string{
		"/nstance/alpha/key": "two", "/nstance/alpha/key:1": "one",
		"arn:aws:ssm:us-west-2:123456789012:parameter/nstance/alpha/key":   "two",
		"arn:aws:ssm:us-west-2:123456789012:parameter/nstance/alpha/key:1": "one",
	} {
		got := must(c.GetParameter(ctx, &sdk.GetParameterInput{Name: &name, WithDecryption: aws.Bool(true)}))(
			t).Parameter
		if *got.Value != want || *got.ARN != "arn:aws:ssm:us-west-2:123456789012:parameter/nstance/alpha/key" ||
			*got.Name != "/nstance/alpha/key" {
			t.Errorf("%s: %s of %s", name, *got.Value, *got.ARN)
		}
	}
	if sealed := must(c.GetParameter(ctx, &sdk.GetParameterInput{Name: put.Name}))(t).Parameter; strings.Contains(
		*sealed.Value, "two") || *sealed.Value == "" {
		t.Errorf("without decryption: %s", *sealed.Value)
	}
	fails(c.GetParameter(ctx, &sdk.GetParameterInput{Name: str("/nstance/alpha/key:3")}))(t, "ParameterVersionNotFound")
	fails(c.GetParameter(ctx, &sdk.GetParameterInput{Name: str("/nstance/beta")}))(t, "ParameterNotFound")

	described := must(c.DescribeParameters(ctx, &sdk.DescribeParametersInput{
		ParameterFilters: []types.ParameterStringFilter{{Key: str("Name"), Option: str("Equals"),
			Values: []string{"/nstance/alpha/key"}}},
	}))(t).Parameters
	if len(described) != 1 || *described[0].KeyId != "alias/aws/ssm" || described[0].Version != 2 ||
		*described[0].Description != "d" || *described[0].LastModifiedUser != "arn:aws:iam::123456789012:root" {
		t.Errorf("described %+v", described)
	}
	must(c.DeleteParameter(ctx, &sdk.DeleteParameterInput{Name: put.Name}))(t)
	fails(c.DeleteParameter(ctx, &sdk.DeleteParameterInput{Name: put.Name}))(t, "ParameterNotFound")
}

func TestLimits(t *testing.T) {
	c, ctx := serve(t), t.Context()
	put := func(name string, size int, tier types.ParameterTier, overwrite bool) (*sdk.PutParameterOutput, error) {
		return c.PutParameter(ctx, &sdk.PutParameterInput{Name: &name, Value: str(strings.Repeat("a", size)),
			Type: types.ParameterTypeString, Tier: tier, Overwrite: &overwrite})
	}
	must(put("plain", 4096, "", false))(t)
	fails(put("long", 4097, "", false))(t, "ValidationException")
	if out := must(put("long", 4097, types.ParameterTierIntelligentTiering, false))(
		t); out.Tier != types.ParameterTierAdvanced {
		t.Errorf("tier %s", out.Tier)
	}
	must(put("longer", 8192, types.ParameterTierAdvanced, false))(t)
	fails(put("longest", 8193, types.ParameterTierAdvanced, false))(t, "ValidationException")
	fails(put("longer", 10, types.ParameterTierStandard, true))(t, "ValidationException")
	if out := must(put("longer", 8000, "", true))(t); out.Tier != types.ParameterTierAdvanced || out.Version != 2 {
		t.Errorf("put %+v", out)
	}
	for _, name := range []string{"aws", "/SSM/x", "a/b", "a b", "/a//b", "/a/", strings.Repeat("/a", 16)} {
		if _, err := put(name, 1, "", false); err == nil {
			t.Errorf("the name %q was taken", name)
		}
	}
	fails(c.PutParameter(ctx, &sdk.PutParameterInput{Name: str("untyped"), Value: str("a")}))(t, "ValidationException")
	fails(c.PutParameter(ctx, &sdk.PutParameterInput{Name: str("p"), Value: str("a"), Type: types.ParameterTypeString,
		AllowedPattern: str("^[0-9]+$")}))(t, "ParameterPatternMismatchException")
	must(put("counted", 1, "", false))(t)
	for range 100 {
		must(put("counted", 1, "", true))(t)
	}
	must(c.GetParameter(ctx, &sdk.GetParameterInput{Name: str("counted:101")}))(t)
	must(c.GetParameter(ctx, &sdk.GetParameterInput{Name: str("counted:2")}))(t)
	fails(c.GetParameter(ctx, &sdk.GetParameterInput{Name: str("counted:1")}))(t, "ParameterVersionNotFound")
}

func TestListing(t *testing.T) {
	c, ctx := serve(t), t.Context()
	for _, name := range []string{"/a/1", "/a/2", "/a/b/3", "/ab/4", "five"} {
		must(c.PutParameter(ctx, &sdk.PutParameterInput{Name: &name, Value: str(name), Type: types.ParameterTypeString,
			Tags: []types.Tag{{Key: str("k"), Value: str("v" + name)}}}))(t)
	}
	tags := must(c.ListTagsForResource(ctx, &sdk.ListTagsForResourceInput{
		ResourceType: types.ResourceTypeForTaggingParameter, ResourceId: str("/a/1")}))(t).TagList
	if len(tags) != 1 || *tags[0].Key != "k" || *tags[0].Value != "v/a/1" {
		t.Errorf("tags %+v", tags)
	}
	fails(c.ListTagsForResource(ctx, &sdk.ListTagsForResourceInput{ResourceType: types.ResourceTypeForTaggingParameter,
		ResourceId: str("/none")}))(t, "InvalidResourceId")

	describe := func(key, option string, values ...string) []string {
		var names []string
		f := types.ParameterStringFilter{Key: &key, Values: values}
		if option != "" {
			f.Option = &option
		}
		for _, p := range must(c.DescribeParameters(ctx, &sdk.DescribeParametersInput{
			ParameterFilters: []types.ParameterStringFilter{f}}))(t).Parameters {
			names = append(names, *p.Name)
		}
		return names
	}
	for _, c := range []struct{ got, want []string }{
		{describe("Name", "BeginsWith", "/a/"), []string{"/a/1", "/a/2", "/a/b/3"}},
		{describe("Name", "Contains", "4", "five"), []string{"/ab/4", "five"}},
		{describe("Type", "", "SecureString"), nil},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Error(diff)
		}
	}
	_, err := c.DescribeParameters(ctx, &sdk.DescribeParametersInput{ParameterFilters: []types.ParameterStringFilter{
		{Key: str("Colour"), Values: []string{"red"}}}})
	fails(0, err)(t, "InvalidFilterKey")
}
