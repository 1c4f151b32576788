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

// must is the result of a call that has to work.
func must[T any](out T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

// fails checks the code of an error that a call has to end with.
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

	must(c.UpdateRoleDescription(ctx, &sdk.UpdateRoleDescriptionInput{RoleName: str("server"),
		Description: str("newer")}))(t)
	must(c.UpdateRole(ctx, &sdk.UpdateRoleInput{RoleName: str("server"), Description: str("new")}))(t)
	must(c.UpdateRole(ctx, &sdk.UpdateRoleInput{RoleName: str("server"), MaxSessionDuration: aws.Int32(7200)}))(t)
	fails(c.UpdateRole(ctx, &sdk.UpdateRoleInput{RoleName: str("server"), MaxSessionDuration: aws.Int32(60)}))(t,
		"ValidationError")
	named := strings.Replace(trust, `"Service":"ec2.amazonaws.com"`,
		`"AWS":"arn:aws:iam::123456789012:role/nstance/server"`, 1)
	must(c.UpdateAssumeRolePolicy(ctx, &sdk.UpdateAssumeRolePolicyInput{RoleName: str("server"),
		PolicyDocument: str(named)}))(t)
	must(c.TagRole(ctx, &sdk.TagRoleInput{RoleName: str("server"), Tags: []types.Tag{{Key: str("Cluster"),
		Value: str("beta")}, {Key: str("a"), Value: str("")}}}))(t)
	must(c.UntagRole(ctx, &sdk.UntagRoleInput{RoleName: str("server"), TagKeys: []string{"a", "b"}}))(t)
	got = must(c.GetRole(ctx, &sdk.GetRoleInput{RoleName: str("server")}))(t).Role
	if len(got.Tags) != 1 || *got.Tags[0].Key != "Cluster" || *got.Tags[0].Value != "beta" ||
		*got.Description != "new" || *got.MaxSessionDuration != 7200 {
		t.Errorf("role after changes: %+v", got)
	}
	tags := must(c.ListRoleTags(ctx, &sdk.ListRoleTagsInput{RoleName: str("server")}))(t).Tags
	if diff := cmp.Diff(got.Tags, tags, cmpopts.IgnoreUnexported(types.Tag{})); diff != "" {
		t.Error(diff)
	}
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
	fails(put("c", long(10100)))(t, "LimitExceeded") // with the others
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

// long is a policy of n characters, and white space that does not count.
func long(n int) string {
	empty := fmt.Sprintf(allow[:len(allow)-3]+`,"Sid":"%s"}]}`, "")
	return fmt.Sprintf(allow[:len(allow)-3]+`,  "Sid":"%s"}]}`, strings.Repeat("a", n-len(empty)))
}

func TestManagedPolicies(t *testing.T) {
	c, service := serve(t)
	ctx := t.Context()
	create := func(name, document string) (*sdk.CreatePolicyOutput, error) {
		return c.CreatePolicy(ctx, &sdk.CreatePolicyInput{PolicyName: str(name), PolicyDocument: str(document),
			Description: str("d"), Tags: []types.Tag{{Key: str("k"), Value: str("v")}}})
	}
	arn := must(create("read", allow))(t).Policy.Arn
	if *arn != "arn:aws:iam::123456789012:policy/read" {
		t.Errorf("ARN %s", *arn)
	}
	fails(create("Read", allow))(t, "EntityAlreadyExists")
	fails(create("write", trust))(t, "MalformedPolicyDocument")
	must(create("write", long(6144)))(t)
	fails(create("more", long(6145)))(t, "LimitExceeded")

	for i := 2; i <= 5; i++ {
		v := must(c.CreatePolicyVersion(ctx, &sdk.CreatePolicyVersionInput{PolicyArn: arn,
			PolicyDocument: str(long(200 + i)), SetAsDefault: i == 3}))(t).PolicyVersion
		if *v.VersionId != fmt.Sprint("v", i) || v.IsDefaultVersion != (i == 3) {
			t.Errorf("version %+v", v)
		}
	}
	fails(c.CreatePolicyVersion(ctx, &sdk.CreatePolicyVersionInput{PolicyArn: arn, PolicyDocument: str(allow)}))(t,
		"LimitExceeded")
	fails(c.DeletePolicyVersion(ctx, &sdk.DeletePolicyVersionInput{PolicyArn: arn, VersionId: str("v3")}))(t,
		"DeleteConflict")
	must(c.DeletePolicyVersion(ctx, &sdk.DeletePolicyVersionInput{PolicyArn: arn, VersionId: str("v1")}))(t)
	fails(c.GetPolicyVersion(ctx, &sdk.GetPolicyVersionInput{PolicyArn: arn, VersionId: str("v1")}))(t, "NoSuchEntity")
	must(c.SetDefaultPolicyVersion(ctx, &sdk.SetDefaultPolicyVersionInput{PolicyArn: arn, VersionId: str("v4")}))(t)
	if got := must(c.GetPolicy(ctx, &sdk.GetPolicyInput{PolicyArn: arn}))(t).Policy; *got.DefaultVersionId != "v4" ||
		*got.AttachmentCount != 0 || len(got.Tags) != 1 || *got.Description != "d" {
		t.Errorf("policy %+v", got)
	}
	version := must(c.GetPolicyVersion(ctx, &sdk.GetPolicyVersionInput{PolicyArn: arn, VersionId: str("v4")}))(
		t).PolicyVersion
	if document, err := url.QueryUnescape(*version.Document); err != nil || document != long(204) {
		t.Errorf("document %s %v", document, err)
	}
	if got := must(c.ListPolicyVersions(ctx, &sdk.ListPolicyVersionsInput{PolicyArn: arn}))(t).Versions; len(
		got) != 4 || *got[0].VersionId != "v5" {
		t.Errorf("versions %+v", got)
	}

	must(c.CreateRole(ctx, &sdk.CreateRoleInput{RoleName: str("server"), AssumeRolePolicyDocument: str(trust),
		PermissionsBoundary: str("arn:aws:iam::123456789012:policy/write")}))(t)
	attach := &sdk.AttachRolePolicyInput{RoleName: str("server"), PolicyArn: arn}
	must(c.AttachRolePolicy(ctx, attach))(t)
	must(c.AttachRolePolicy(ctx, attach))(t)
	fails(c.AttachRolePolicy(ctx, &sdk.AttachRolePolicyInput{RoleName: str("server"),
		PolicyArn: str("arn:aws:iam::aws:policy/None")}))(t, "NoSuchEntity")
	if got := must(c.ListAttachedRolePolicies(ctx, &sdk.ListAttachedRolePoliciesInput{RoleName: str("server")}))(
		t).AttachedPolicies; len(got) != 1 || *got[0].PolicyName != "read" {
		t.Errorf("attached %+v", got)
	}
	if got := must(c.ListEntitiesForPolicy(ctx, &sdk.ListEntitiesForPolicyInput{PolicyArn: arn}))(t).PolicyRoles; len(
		got) != 1 || *got[0].RoleName != "server" {
		t.Errorf("entities %+v", got)
	}
	if role, _ := service.Role("server"); len(role.Identity) != 1 || !strings.HasPrefix(
		role.Identity[0].Statements[0].SID, "aa") || role.Boundary == nil {
		t.Errorf("in force %+v", role)
	}
	if got := must(c.ListPolicies(ctx, &sdk.ListPoliciesInput{Scope: types.PolicyScopeTypeLocal, OnlyAttached: true}))(
		t).Policies; len(got) != 1 || *got[0].AttachmentCount != 1 {
		t.Errorf("policies %+v", got)
	}
	for _, p := range []*string{arn, str("arn:aws:iam::123456789012:policy/write")} {
		fails(c.DeletePolicy(ctx, &sdk.DeletePolicyInput{PolicyArn: p}))(t, "DeleteConflict")
	}
	fails(c.DeleteRole(ctx, &sdk.DeleteRoleInput{RoleName: str("server")}))(t, "DeleteConflict")
	must(c.DetachRolePolicy(ctx, &sdk.DetachRolePolicyInput{RoleName: str("server"), PolicyArn: arn}))(t)
	fails(c.DetachRolePolicy(ctx, &sdk.DetachRolePolicyInput{RoleName: str("server"), PolicyArn: arn}))(t,
		"NoSuchEntity")
	must(c.DeleteRolePermissionsBoundary(ctx, &sdk.DeleteRolePermissionsBoundaryInput{RoleName: str("server")}))(t)
	fails(c.PutRolePermissionsBoundary(ctx, &sdk.PutRolePermissionsBoundaryInput{RoleName: str("server"),
		PermissionsBoundary: str("arn:aws:iam::aws:policy/None")}))(t, "NoSuchEntity")
	must(c.PutRolePermissionsBoundary(ctx, &sdk.PutRolePermissionsBoundaryInput{RoleName: str("server"),
		PermissionsBoundary: arn}))(t)
	if got := must(c.GetRole(ctx, &sdk.GetRoleInput{RoleName: str("server")}))(
		t).Role.PermissionsBoundary; *got.PermissionsBoundaryArn != *arn {
		t.Errorf("boundary %+v", got)
	}
	must(c.DeleteRole(ctx, &sdk.DeleteRoleInput{RoleName: str("server")}))(t)

	fails(c.DeletePolicy(ctx, &sdk.DeletePolicyInput{PolicyArn: arn}))(t, "DeleteConflict") // versions
	for _, v := range []string{"v2", "v3", "v5"} {
		must(c.DeletePolicyVersion(ctx, &sdk.DeletePolicyVersionInput{PolicyArn: arn, VersionId: &v}))(t)
	}
	must(c.TagPolicy(ctx, &sdk.TagPolicyInput{PolicyArn: arn, Tags: []types.Tag{{Key: str("l"), Value: str("w")}}}))(t)
	must(c.UntagPolicy(ctx, &sdk.UntagPolicyInput{PolicyArn: arn, TagKeys: []string{"k"}}))(t)
	if got := must(c.ListPolicyTags(ctx, &sdk.ListPolicyTagsInput{PolicyArn: arn}))(t).Tags; len(got) != 1 ||
		*got[0].Key != "l" {
		t.Errorf("tags %+v", got)
	}
	must(c.DeletePolicy(ctx, &sdk.DeletePolicyInput{PolicyArn: arn}))(t)
	fails(c.GetPolicy(ctx, &sdk.GetPolicyInput{PolicyArn: arn}))(t, "NoSuchEntity")
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
	must(c.TagInstanceProfile(ctx, &sdk.TagInstanceProfileInput{InstanceProfileName: name,
		Tags: []types.Tag{{Key: str("l"), Value: str("w")}}}))(t)
	must(c.UntagInstanceProfile(ctx, &sdk.UntagInstanceProfileInput{InstanceProfileName: name,
		TagKeys: []string{"k"}}))(t)
	if tags := must(c.ListInstanceProfileTags(ctx, &sdk.ListInstanceProfileTagsInput{InstanceProfileName: name}))(
		t).Tags; len(tags) != 1 || *tags[0].Key != "l" {
		t.Errorf("tags %+v", tags)
	}
	must(c.DeleteInstanceProfile(ctx, &sdk.DeleteInstanceProfileInput{InstanceProfileName: name}))(t)
	fails(c.GetInstanceProfile(ctx, &sdk.GetInstanceProfileInput{InstanceProfileName: name}))(t, "NoSuchEntity")
}
