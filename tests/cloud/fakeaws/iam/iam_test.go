package iam_test

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/iam/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/iam"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

const (
	trust = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}`
	allow = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"ec2:Describe*","Resource":"*"}]}`
)

func serve(t *testing.T) (*sdk.Client, *iam.Service) {
	t.Helper()
	service := iam.New("123456789012")
	server := httptest.NewServer(wire.Handle(service, "123456789012", "us-west-2", &sync.Mutex{}))
	t.Cleanup(server.Close)
	return sdk.New(sdk.Options{
		Region: "us-west-2", BaseEndpoint: aws.String(server.URL), RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider("AKIAEXAMPLE", "secret", ""),
	}), service
}

func str(s string) *string { return &s }

// must returns the result of a call that must succeed.
func must[T any](out T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

// fails checks the error code of a call that must fail.
func fails[T any](_ T, err error) func(t *testing.T, code string) {
	return func(t *testing.T, code string) {
		t.Helper()
		var api smithy.APIError
		if !errors.As(err, &api) || api.ErrorCode() != code {
			t.Fatalf("got %v, want %s", err, code)
		}
	}
}

func TestRole(t *testing.T) {
	c, _ := serve(t)
	ctx := t.Context()
	created := must(c.CreateRole(ctx, &sdk.CreateRoleInput{
		RoleName: str("server"), Path: str("/nstance/"), AssumeRolePolicyDocument: str(trust),
		Description: str("of the <server>"),
		Tags:        []types.Tag{{Key: str("cluster"), Value: str("alpha")}},
	}))(t).Role
	if *created.Arn != "arn:aws:iam::123456789012:role/nstance/server" || !strings.HasPrefix(*created.RoleId, "AROA") ||
		len(*created.RoleId) != 21 {
		t.Errorf("role %s %s", *created.Arn, *created.RoleId)
	}
	fails(c.CreateRole(ctx, &sdk.CreateRoleInput{RoleName: str("server"), AssumeRolePolicyDocument: str(trust)}))(t,
		"EntityAlreadyExists")
	fails(c.CreateRole(ctx, &sdk.CreateRoleInput{RoleName: str("bad name"), AssumeRolePolicyDocument: str(trust)}))(t,
		"ValidationError")
	fails(c.CreateRole(ctx, &sdk.CreateRoleInput{RoleName: str("a"), AssumeRolePolicyDocument: str(allow)}))(t,
		"MalformedPolicyDocument")
	fails(c.CreateRole(ctx, &sdk.CreateRoleInput{RoleName: str("a"), AssumeRolePolicyDocument: str(
		strings.Replace(trust,
			`"Service":"ec2.amazonaws.com"`, `"AWS":"arn:aws:iam::123456789012:role/nobody"`, 1))}))(t,
		"MalformedPolicyDocument")

	got := must(c.GetRole(ctx, &sdk.GetRoleInput{RoleName: str("server")}))(t).Role
	if diff := cmp.Diff(created, got, cmpopts.IgnoreUnexported(types.Role{}, types.Tag{})); diff != "" {
		t.Error(diff)
	}
	if document, err := url.QueryUnescape(*got.AssumeRolePolicyDocument); err != nil || document != trust {
		t.Errorf("trust policy %s %v", document, err)
	}
	fails(c.GetRole(ctx, &sdk.GetRoleInput{RoleName: str("other")}))(t, "NoSuchEntity")
	if got := must(c.ListAttachedRolePolicies(ctx, &sdk.ListAttachedRolePoliciesInput{RoleName: str("server")}))(
		t).AttachedPolicies; len(got) != 0 {
		t.Errorf("attached policies: %+v", got)
	}
	named := strings.Replace(trust, `"Service":"ec2.amazonaws.com"`,
		`"AWS":"arn:aws:iam::123456789012:role/nstance/server"`, 1)
	must(c.CreateRole(ctx, &sdk.CreateRoleInput{RoleName: str("second"), AssumeRolePolicyDocument: &named}))(t)
	fails(c.CreateRole(ctx, &sdk.CreateRoleInput{RoleName: str("short"), AssumeRolePolicyDocument: str(trust),
		MaxSessionDuration: aws.Int32(60)}))(t, "ValidationError")
	must(c.DeleteRole(ctx, &sdk.DeleteRoleInput{RoleName: str("server")}))(t)
	fails(c.DeleteRole(ctx, &sdk.DeleteRoleInput{RoleName: str("server")}))(t, "NoSuchEntity")
}

func TestInlinePolicies(t *testing.T) {
	c, service := serve(t)
	ctx := t.Context()
	must(c.CreateRole(ctx, &sdk.CreateRoleInput{RoleName: str("server"), AssumeRolePolicyDocument: str(trust)}))(t)
	put := func(name, document string) (*sdk.PutRolePolicyOutput, error) {
		return c.PutRolePolicy(ctx, &sdk.PutRolePolicyInput{RoleName: str("server"), PolicyName: str(name),
			PolicyDocument: str(document)})
	}
	must(put("b", allow))(t)
	must(put("a", allow))(t)
	must(put("b", strings.Replace(allow, "Describe", "Run", 1)))(t)
	fails(put("c", trust))(t, "MalformedPolicyDocument")
	fails(put("c", "{"))(t, "MalformedPolicyDocument")
	fails(put("c", long(10100)))(t, "LimitExceeded") // too long together with the other policies
	names := must(c.ListRolePolicies(ctx, &sdk.ListRolePoliciesInput{RoleName: str("server"), MaxItems: aws.Int32(1)}))(
		t)
	if !names.IsTruncated || len(names.PolicyNames) != 1 || names.PolicyNames[0] != "a" {
		t.Errorf("first page %+v", names)
	}
	names = must(c.ListRolePolicies(ctx, &sdk.ListRolePoliciesInput{RoleName: str("server"), Marker: names.Marker}))(t)
	if names.IsTruncated || len(names.PolicyNames) != 1 || names.PolicyNames[0] != "b" {
		t.Errorf("second page %+v", names)
	}
	got := must(c.GetRolePolicy(ctx, &sdk.GetRolePolicyInput{RoleName: str("server"), PolicyName: str("b")}))(t)
	if document, err := url.QueryUnescape(*got.PolicyDocument); err != nil ||
		document != strings.Replace(allow, "Describe", "Run", 1) {
		t.Errorf("policy %s %v", document, err)
	}
	if role, ok := service.Role("server"); !ok || len(role.Identity) != 2 ||
		role.Identity[1].Statements[0].Actions[0] != "ec2:Run*" {
		t.Errorf("in force: %+v", role)
	}
	fails(c.DeleteRole(ctx, &sdk.DeleteRoleInput{RoleName: str("server")}))(t, "DeleteConflict")
	for _, name := range []string{"a", "b"} {
		must(c.DeleteRolePolicy(ctx, &sdk.DeleteRolePolicyInput{RoleName: str("server"), PolicyName: &name}))(t)
	}
	fails(c.GetRolePolicy(ctx, &sdk.GetRolePolicyInput{RoleName: str("server"), PolicyName: str("b")}))(t,
		"NoSuchEntity")
	fails(c.DeleteRolePolicy(ctx, &sdk.DeleteRolePolicyInput{RoleName: str("server"), PolicyName: str("b")}))(t,
		"NoSuchEntity")
	must(c.DeleteRole(ctx, &sdk.DeleteRoleInput{RoleName: str("server")}))(t)
}

// long returns a policy with n characters that IAM counts, and with some white space that IAM does not count.
func long(n int) string {
	empty := fmt.Sprintf(allow[:len(allow)-3]+`,"Sid":"%s"}]}`, "")
	return fmt.Sprintf(allow[:len(allow)-3]+`,  "Sid":"%s"}]}`, strings.Repeat("a", n-len(empty)))
}

func TestInstanceProfile(t *testing.T) {
	c, service := serve(t)
	ctx := t.Context()
	for _, name := range []string{"server", "agent"} {
		must(c.CreateRole(ctx, &sdk.CreateRoleInput{RoleName: &name, AssumeRolePolicyDocument: str(trust)}))(t)
	}
	name := str("profile")
	made := must(c.CreateInstanceProfile(ctx, &sdk.CreateInstanceProfileInput{InstanceProfileName: name,
		Tags: []types.Tag{{Key: str("k"), Value: str("v")}}}))(t).InstanceProfile
	fails(c.CreateInstanceProfile(ctx, &sdk.CreateInstanceProfileInput{InstanceProfileName: name}))(t,
		"EntityAlreadyExists")
	must(c.AddRoleToInstanceProfile(ctx, &sdk.AddRoleToInstanceProfileInput{InstanceProfileName: name,
		RoleName: str("server")}))(t)
	fails(c.AddRoleToInstanceProfile(ctx, &sdk.AddRoleToInstanceProfileInput{InstanceProfileName: name,
		RoleName: str("agent")}))(t, "LimitExceeded")
	fails(c.AddRoleToInstanceProfile(ctx, &sdk.AddRoleToInstanceProfileInput{InstanceProfileName: name,
		RoleName: str("none")}))(t, "NoSuchEntity")
	got := must(c.GetInstanceProfile(ctx, &sdk.GetInstanceProfileInput{InstanceProfileName: name}))(t).InstanceProfile
	if len(got.Roles) != 1 || *got.Roles[0].RoleName != "server" ||
		*got.Arn != "arn:aws:iam::123456789012:instance-profile/profile" || len(got.Tags) != 1 {
		t.Errorf("profile %+v", got)
	}
	for _, by := range []string{"profile", *made.Arn} {
		if p, ok := service.Profile(by); !ok || p.Role != "server" || p.ID != *made.InstanceProfileId {
			t.Errorf("by %s: %+v", by, p)
		}
	}
	if list := must(c.ListInstanceProfilesForRole(ctx, &sdk.ListInstanceProfilesForRoleInput{RoleName: str("server")}))(
		t).InstanceProfiles; len(list) != 1 {
		t.Errorf("of the role: %+v", list)
	}
	if list := must(c.ListInstanceProfilesForRole(ctx, &sdk.ListInstanceProfilesForRoleInput{RoleName: str("agent")}))(
		t).InstanceProfiles; len(list) != 0 {
		t.Errorf("of another role: %+v", list)
	}
	fails(c.DeleteRole(ctx, &sdk.DeleteRoleInput{RoleName: str("server")}))(t, "DeleteConflict")
	fails(c.DeleteInstanceProfile(ctx, &sdk.DeleteInstanceProfileInput{InstanceProfileName: name}))(t, "DeleteConflict")
	fails(c.RemoveRoleFromInstanceProfile(ctx, &sdk.RemoveRoleFromInstanceProfileInput{InstanceProfileName: name,
		RoleName: str("agent")}))(t, "NoSuchEntity")
	must(c.RemoveRoleFromInstanceProfile(ctx, &sdk.RemoveRoleFromInstanceProfileInput{InstanceProfileName: name,
		RoleName: str("server")}))(t)
	must(c.DeleteInstanceProfile(ctx, &sdk.DeleteInstanceProfileInput{InstanceProfileName: name}))(t)
	fails(c.GetInstanceProfile(ctx, &sdk.GetInstanceProfileInput{InstanceProfileName: name}))(t, "NoSuchEntity")
}
