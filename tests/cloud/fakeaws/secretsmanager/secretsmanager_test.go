package secretsmanager_test

import (
	"errors"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/secretsmanager"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// serve returns a client of the fake, and an offset in nanoseconds. The fake adds the offset to its clock.
func serve(t *testing.T) (*sdk.Client, *atomic.Int64) {
	t.Helper()
	later := new(atomic.Int64)
	service := secretsmanager.New("us-west-2", "123456789012", func() time.Time {
		return time.Now().Add(time.Duration(later.Load()))
	})
	server := httptest.NewServer(wire.Handle(service, "123456789012", "us-west-2", &sync.Mutex{}))
	t.Cleanup(server.Close)
	return sdk.New(sdk.Options{
		Region: "us-west-2", BaseEndpoint: aws.String(server.URL), RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider("AKIAEXAMPLE", "secret", ""),
	}), later
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

const tokenA, tokenB, tokenC = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000",
	"cccccccc-0000-4000-8000-000000000000"

func TestCreate(t *testing.T) {
	c, _ := serve(t)
	ctx := t.Context()
	in := &sdk.CreateSecretInput{Name: str("nstance/alpha"), SecretString: str("one"), ClientRequestToken: str(tokenA),
		Description: str("d"), Tags: []types.Tag{{Key: str("k"), Value: str("v")}}}
	made := must(c.CreateSecret(ctx, in))(t)
	if !regexp.MustCompile(
		`^arn:aws:secretsmanager:us-west-2:123456789012:secret:nstance/alpha-[A-Za-z0-9]{6}$`).MatchString(*made.ARN) ||
		*made.VersionId != tokenA {
		t.Errorf("made %+v", made)
	}
	if again := must(c.CreateSecret(ctx, in))(t); *again.ARN != *made.ARN {
		t.Errorf("the same call made another secret: %s", *again.ARN)
	}
	in.SecretString = str("two")
	fails(c.CreateSecret(ctx, in))(t, "ResourceExistsException")
	in.SecretString, in.ClientRequestToken = str("one"), str(tokenB)
	fails(c.CreateSecret(ctx, in))(t, "ResourceExistsException")
	fails(c.CreateSecret(ctx, &sdk.CreateSecretInput{Name: str("both"), SecretString: str("a"),
		SecretBinary: []byte("a")}))(t, "InvalidParameterException")
	fails(c.CreateSecret(ctx, &sdk.CreateSecretInput{Name: str("bad name"), SecretString: str("a")}))(t,
		"ValidationException")
	fails(c.CreateSecret(ctx, &sdk.CreateSecretInput{Name: str("big"), SecretString: str(strings.Repeat("a", 65537))}))(
		t, "ValidationException")
	must(c.CreateSecret(ctx, &sdk.CreateSecretInput{Name: str("big"), SecretBinary: []byte(strings.Repeat("a",
		65536))}))(t)

	for _, id := range []string{"nstance/alpha", *made.ARN, (*made.ARN)[:len(*made.ARN)-7]} {
		if got := must(c.GetSecretValue(ctx, &sdk.GetSecretValueInput{SecretId: &id}))(t); *got.SecretString != "one" ||
			*got.ARN != *made.ARN || got.SecretBinary != nil || *got.VersionId != tokenA {
			t.Errorf("by %s: %+v", id, got)
		}
	}
	fails(c.GetSecretValue(ctx, &sdk.GetSecretValueInput{SecretId: str((*made.ARN)[:len(*made.ARN)-6] + "zzzzzz")}))(t,
		"ResourceNotFoundException")
	if got := must(c.GetSecretValue(ctx, &sdk.GetSecretValueInput{SecretId: str("big")}))(t); len(
		got.SecretBinary) != 65536 || got.SecretString != nil {
		t.Errorf("binary: %d bytes", len(got.SecretBinary))
	}
	described := must(c.DescribeSecret(ctx, &sdk.DescribeSecretInput{SecretId: made.ARN}))(t)
	if diff := cmp.Diff(map[string][]string{tokenA: {"AWSCURRENT"}}, described.VersionIdsToStages); diff != "" ||
		*described.Description != "d" || len(described.Tags) != 1 || described.DeletedDate != nil {
		t.Errorf("described %+v: %s", described, diff)
	}

	must(c.CreateSecret(ctx, &sdk.CreateSecretInput{Name: str("empty")}))(t)
	fails(c.GetSecretValue(ctx, &sdk.GetSecretValueInput{SecretId: str("empty")}))(t, "ResourceNotFoundException")
	fails(c.PutSecretValue(ctx, &sdk.PutSecretValueInput{SecretId: str("empty")}))(t, "InvalidRequestException")
}

func TestVersions(t *testing.T) {
	c, _ := serve(t)
	ctx := t.Context()
	id := must(c.CreateSecret(ctx, &sdk.CreateSecretInput{Name: str("s"), SecretString: str("a"),
		ClientRequestToken: str(tokenA)}))(t).ARN
	stages := func() map[string][]string {
		return must(c.DescribeSecret(ctx, &sdk.DescribeSecretInput{SecretId: id}))(t).VersionIdsToStages
	}
	put := &sdk.PutSecretValueInput{SecretId: id, SecretString: str("b"), ClientRequestToken: str(tokenB)}
	must(c.PutSecretValue(ctx, put))(t)
	if again := must(c.PutSecretValue(ctx, put))(t); *again.VersionId != tokenB {
		t.Errorf("again %+v", again)
	}
	fails(c.PutSecretValue(ctx, &sdk.PutSecretValueInput{SecretId: id, SecretString: str("x"),
		ClientRequestToken: str(tokenB)}))(t, "ResourceExistsException")
	if diff := cmp.Diff(map[string][]string{tokenA: {"AWSPREVIOUS"}, tokenB: {"AWSCURRENT"}}, stages()); diff != "" {
		t.Error(diff)
	}
	must(c.PutSecretValue(ctx, &sdk.PutSecretValueInput{SecretId: id, SecretString: str("c"),
		ClientRequestToken: str(tokenC), VersionStages: []string{"AWSPENDING"}}))(t)
	get := func(version, stage string) (*sdk.GetSecretValueOutput, error) {
		in := &sdk.GetSecretValueInput{SecretId: id}
		if version != "" {
			in.VersionId = &version
		}
		if stage != "" {
			in.VersionStage = &stage
		}
		return c.GetSecretValue(ctx, in)
	}
	for _, want := range []struct{ version, stage, value string }{
		{"", "", "b"}, {"", "AWSPREVIOUS", "a"}, {"", "AWSPENDING", "c"}, {tokenA, "", "a"},
		{tokenC, "AWSPENDING", "c"},
	} {
		if got := must(get(want.version, want.stage))(t); *got.SecretString != want.value {
			t.Errorf("%s %s: %s", want.version, want.stage, *got.SecretString)
		}
	}
	fails(get("", "none"))(t, "ResourceNotFoundException")
	fails(get("none", ""))(t, "ResourceNotFoundException")
	fails(get(tokenA, "AWSCURRENT"))(t, "InvalidRequestException")

}

func TestDelete(t *testing.T) {
	c, later := serve(t)
	ctx := t.Context()
	create := func() *string {
		return must(c.CreateSecret(ctx, &sdk.CreateSecretInput{Name: str("s"), SecretString: str("a")}))(t).ARN
	}
	id := create()
	fails(c.DeleteSecret(ctx, &sdk.DeleteSecretInput{SecretId: id, RecoveryWindowInDays: aws.Int64(6)}))(t,
		"InvalidParameterException")
	fails(c.DeleteSecret(ctx, &sdk.DeleteSecretInput{SecretId: id, RecoveryWindowInDays: aws.Int64(7),
		ForceDeleteWithoutRecovery: aws.Bool(true)}))(t, "InvalidParameterException")
	if out := must(c.DeleteSecret(ctx, &sdk.DeleteSecretInput{SecretId: id, RecoveryWindowInDays: aws.Int64(7)}))(
		t); time.Until(*out.DeletionDate).Round(time.Hour) != 7*24*time.Hour {
		t.Errorf("deleted at %s", out.DeletionDate)
	}
	fails(c.GetSecretValue(ctx, &sdk.GetSecretValueInput{SecretId: id}))(t, "InvalidRequestException")
	fails(c.PutSecretValue(ctx, &sdk.PutSecretValueInput{SecretId: id, SecretString: str("b")}))(t,
		"InvalidRequestException")
	fails(c.CreateSecret(ctx, &sdk.CreateSecretInput{Name: str("s"), SecretString: str("a")}))(t,
		"InvalidRequestException")
	fails(c.DeleteSecret(ctx, &sdk.DeleteSecretInput{SecretId: id}))(t, "InvalidRequestException")
	if got := must(c.DescribeSecret(ctx, &sdk.DescribeSecretInput{SecretId: id}))(t); got.DeletedDate == nil {
		t.Error("it does not say that it is deleted")
	}
	later.Store(int64(7*24*time.Hour + time.Minute))
	fails(c.DescribeSecret(ctx, &sdk.DescribeSecretInput{SecretId: id}))(t, "ResourceNotFoundException")
	later.Store(0)

	again := create()
	if *again == *id {
		t.Error("a new secret has the old one's ARN")
	}
	must(c.DeleteSecret(ctx, &sdk.DeleteSecretInput{SecretId: again, ForceDeleteWithoutRecovery: aws.Bool(true)}))(t)
	fails(c.GetSecretValue(ctx, &sdk.GetSecretValueInput{SecretId: again}))(t, "ResourceNotFoundException")
	must(c.DeleteSecret(ctx, &sdk.DeleteSecretInput{SecretId: again, ForceDeleteWithoutRecovery: aws.Bool(true)}))(t)
	fails(c.DeleteSecret(ctx, &sdk.DeleteSecretInput{SecretId: again}))(t, "ResourceNotFoundException")
	create()
}

func TestListing(t *testing.T) {
	c, _ := serve(t)
	ctx := t.Context()
	for _, name := range []string{"b/2", "a/1", "b/3", "c/4"} {
		must(c.CreateSecret(ctx, &sdk.CreateSecretInput{Name: &name, SecretString: str("x"),
			Tags: []types.Tag{{Key: str("cluster"), Value: str(name[:1])}}}))(t)
	}
	must(c.DeleteSecret(ctx, &sdk.DeleteSecretInput{SecretId: str("c/4")}))(t)
	list := func(planned bool, filters ...types.Filter) []string {
		var names []string
		pages := sdk.NewListSecretsPaginator(c, &sdk.ListSecretsInput{MaxResults: aws.Int32(1), Filters: filters,
			IncludePlannedDeletion: &planned, SortBy: types.SortByTypeName})
		for pages.HasMorePages() {
			for _, s := range must(pages.NextPage(ctx))(t).SecretList {
				names = append(names, *s.Name)
			}
		}
		return names
	}
	for _, c := range []struct{ got, want []string }{
		{list(false), []string{"a/1", "b/2", "b/3"}},
		{list(true), []string{"a/1", "b/2", "b/3", "c/4"}},
		{list(false, types.Filter{Key: types.FilterNameStringTypeName, Values: []string{"b/"}}),
			[]string{"b/2", "b/3"}},
		{list(false, types.Filter{Key: types.FilterNameStringTypeName, Values: []string{"!b/"}}), []string{"a/1"}},
		{list(false, types.Filter{Key: types.FilterNameStringTypeTagValue, Values: []string{"a", "b"}},
			types.Filter{Key: types.FilterNameStringTypeName, Values: []string{"b/3"}}), []string{"b/3"}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Error(diff)
		}
	}
	_, err := c.ListSecrets(ctx, &sdk.ListSecretsInput{NextToken: str("nonsense")})
	fails(0, err)(t, "InvalidNextTokenException")
}

func TestResourcePolicy(t *testing.T) {
	c, _ := serve(t)
	ctx := t.Context()
	must(c.CreateSecret(ctx, &sdk.CreateSecretInput{Name: str("s"), SecretString: str("a")}))(t)
	if got := must(c.GetResourcePolicy(ctx, &sdk.GetResourcePolicyInput{SecretId: str("s")}))(
		t); got.ResourcePolicy != nil || *got.Name != "s" {
		t.Errorf("policy %+v", got)
	}
}
