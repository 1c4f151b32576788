package fakeaws_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
)

// testCloud is a cloud behind a listener.
type testCloud struct {
	*fakeaws.Cloud
	url   string
	clock atomic.Int64 // added to the time of day
}

func newTestCloud(t *testing.T, options ...func(*fakeaws.Config)) *testCloud {
	t.Helper()
	w := &testCloud{}
	cfg := fakeaws.Config{Now: func() time.Time {
		return time.Now().Add(time.Duration(w.clock.Load()))
	}, ScalingEvery: 20 * time.Millisecond}
	for _, option := range options {
		option(&cfg)
	}
	cloud, err := fakeaws.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(cloud)
	t.Cleanup(func() {
		server.Close()
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	w.Cloud, w.url = cloud, server.URL
	return w
}

func (c *testCloud) config(access, secret, token string) aws.Config {
	return aws.Config{
		Region: c.Region(), BaseEndpoint: aws.String(c.url), RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, token),
		// If a reused connection breaks, net/http sends the request again without the SDK's knowledge.
		HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
}

// root returns a client configuration with the access key of the account. The configuration that [testCloud.role]
// returns has the credentials of a role.
func (c *testCloud) root() aws.Config {
	access, secret := c.Credentials()
	return c.config(access, secret, "")
}

func (c *testCloud) role(name, session string) aws.Config {
	return c.config(c.RoleCredentials(name, session))
}

const trustEC2 = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}`

// allow makes a role with one inline policy that contains the statements.
func (c *testCloud) allow(t *testing.T, role string, statements ...string) {
	t.Helper()
	client := iam.NewFromConfig(c.root())
	_, err := client.CreateRole(t.Context(), &iam.CreateRoleInput{RoleName: &role,
		AssumeRolePolicyDocument: aws.String(trustEC2)})
	var known smithy.APIError
	if err != nil && !(errors.As(err, &known) && known.ErrorCode() == "EntityAlreadyExists") {
		t.Fatal(err)
	}
	document := `{"Version":"2012-10-17","Statement":[` + strings.Join(statements, ",") + `]}`
	if _, err := client.PutRolePolicy(t.Context(), &iam.PutRolePolicyInput{RoleName: &role,
		PolicyName: aws.String("may"), PolicyDocument: &document}); err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var api smithy.APIError
	if !errors.As(err, &api) || api.ErrorCode() != code {
		t.Fatalf("got %v, want %s", err, code)
	}
}

func TestPrincipals(t *testing.T) {
	w := newTestCloud(t)
	who := func(c aws.Config) string {
		t.Helper()
		out, err := sts.NewFromConfig(c).GetCallerIdentity(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if *out.Account != fakeaws.Account {
			t.Errorf("account %s", *out.Account)
		}
		return *out.Arn
	}
	if got := who(w.root()); got != "arn:aws:iam::123456789012:root" {
		t.Errorf("the account is %s", got)
	}
	w.allow(t, "server", `{"Effect":"Deny","Action":"*","Resource":"*"}`)
	session := w.role("server", "i-0123")
	if got := who(session); got != "arn:aws:sts::123456789012:assumed-role/server/i-0123" {
		t.Errorf("the instance is %s", got)
	}

	w.clock.Store(int64(6*time.Hour + time.Minute))
	// The cloud's clock is now ahead of the client's. The signature is too old, although the session is still valid.
	_, err := sts.NewFromConfig(session).GetCallerIdentity(t.Context(), nil)
	wantCode(t, err, "SignatureDoesNotMatch")
	w.clock.Store(0)
	w.ExpireSessions("server")
	_, err = sts.NewFromConfig(session).GetCallerIdentity(t.Context(), nil)
	wantCode(t, err, "ExpiredToken")

	session = w.role("server", "i-0124")
	root := iam.NewFromConfig(w.root())
	if _, err := root.DeleteRolePolicy(t.Context(), &iam.DeleteRolePolicyInput{RoleName: aws.String("server"),
		PolicyName: aws.String("may")}); err != nil {
		t.Fatal(err)
	}
	if _, err := root.DeleteRole(t.Context(), &iam.DeleteRoleInput{RoleName: aws.String("server")}); err != nil {
		t.Fatal(err)
	}
	_, err = sts.NewFromConfig(session).GetCallerIdentity(t.Context(), nil)
	wantCode(t, err, "InvalidClientTokenId")

	access, _ := w.Credentials()
	_, err = sts.NewFromConfig(w.config(access, "wrong", "")).GetCallerIdentity(t.Context(), nil)
	wantCode(t, err, "SignatureDoesNotMatch")
	_, err = sts.NewFromConfig(w.config("AKIANOBODY", "wrong", "")).GetCallerIdentity(t.Context(), nil)
	wantCode(t, err, "InvalidClientTokenId")
	unsigned := w.root()
	unsigned.Credentials = aws.AnonymousCredentials{}
	_, err = sts.NewFromConfig(unsigned).GetCallerIdentity(t.Context(), nil)
	wantCode(t, err, "MissingAuthenticationToken")
}

func TestPermissions(t *testing.T) {
	w := newTestCloud(t)
	w.allow(t, "reader", `{"Effect":"Allow","Action":"iam:GetRole","Resource":"arn:aws:iam::123456789012:role/reader"}`)
	w.allow(t, "other", `{"Effect":"Allow","Action":"s3:GetObject","Resource":"*"}`)
	reader := iam.NewFromConfig(w.role("reader", "me"))
	if _, err := reader.GetRole(t.Context(), &iam.GetRoleInput{RoleName: aws.String("reader")}); err != nil {
		t.Fatal(err)
	}
	_, err := reader.GetRole(t.Context(), &iam.GetRoleInput{RoleName: aws.String("other")})
	wantCode(t, err, "AccessDenied")
	want := "User: arn:aws:sts::123456789012:assumed-role/reader/me is not authorized to perform: iam:GetRole on " +
		"resource: arn:aws:iam::123456789012:role/other" +
		" because no identity-based policy allows the iam:GetRole action"
	if !strings.Contains(err.Error(), want) {
		t.Errorf("error %v", err)
	}
	_, err = reader.DeleteRole(t.Context(), &iam.DeleteRoleInput{RoleName: aws.String("other")})
	wantCode(t, err, "AccessDenied")

	var got []string
	for _, call := range w.Calls() {
		if call.Principal.Role == "reader" {
			for _, check := range call.Checks {
				got = append(got, strings.Join([]string{call.Service, call.Action, call.Code, check.Action,
					check.Resource[len("arn:aws:iam::123456789012:"):]}, " "))
				if check.Allowed != (call.Code == "") || check.Allowed != (check.Reason == "") {
					t.Errorf("check %+v in call %+v", check, call)
				}
			}
		}
	}
	if diff := cmp.Diff([]string{"iam GetRole  iam:GetRole role/reader",
		"iam GetRole AccessDenied iam:GetRole role/other", "iam DeleteRole AccessDenied iam:DeleteRole role/other"},
		got); diff != "" {
		t.Error(diff)
	}
}

func TestFaults(t *testing.T) {
	w := newTestCloud(t)
	w.allow(t, "server", `{"Effect":"Allow","Action":"iam:*","Resource":"*"}`)
	server, root := iam.NewFromConfig(w.role("server", "s1")), iam.NewFromConfig(w.root())
	get := &iam.GetRoleInput{RoleName: aws.String("server")}

	w.Faults().Throttle(fault.Match{Service: "iam", Action: "GetRole", Role: "server"}, 2)
	if _, err := root.GetRole(t.Context(), get); err != nil {
		t.Errorf("another caller was throttled: %v", err)
	}
	_, err := server.GetRole(t.Context(), get)
	wantCode(t, err, "Throttling")
	patient := iam.NewFromConfig(w.role("server", "s2"), func(o *iam.Options) { o.RetryMaxAttempts = 2 })
	if _, err := patient.GetRole(t.Context(), get); err != nil {
		t.Errorf("the SDK does not try again after throttling: %v", err)
	}

	w.Faults().Fail(fault.Match{Action: "GetRole"}, 1, 400, "Odd", "on purpose")
	_, err = root.GetRole(t.Context(), get)
	wantCode(t, err, "Odd")

	// The fake makes the role, but the client gets no answer.
	w.Faults().LoseAnswer(fault.Match{Action: "CreateRole"}, 1)
	_, err = server.CreateRole(t.Context(), &iam.CreateRoleInput{RoleName: aws.String("made"),
		AssumeRolePolicyDocument: aws.String(trustEC2)})
	var api smithy.APIError
	if err == nil || errors.As(err, &api) {
		t.Errorf("a lost answer is %v", err)
	}
	if _, err := root.GetRole(t.Context(), &iam.GetRoleInput{RoleName: aws.String("made")}); err != nil {
		t.Error(err)
	}
	calls := w.Calls()
	if i := slices.IndexFunc(calls, func(c fakeaws.Call) bool {
		return c.Lost
	}); i < 0 || calls[i].Action != "CreateRole" || calls[i].Principal.Role != "server" || calls[i].Code != "" {
		t.Errorf("the lost call is not on record")
	}

	w.Faults().Delay(fault.Match{Service: "iam"}, fault.Forever, time.Hour)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := root.GetRole(short, get); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a delayed answer is %v", err)
	}
	w.Faults().Clear()
	if _, err := root.GetRole(t.Context(), get); err != nil || w.Faults().Pending() != 0 {
		t.Error(err)
	}
}

func TestSecretsAndParameters(t *testing.T) {
	w := newTestCloud(t)
	root := w.root()
	secrets, parameters := secretsmanager.NewFromConfig(root), ssm.NewFromConfig(root)
	var arn string
	for _, name := range []string{"key", "other"} {
		out, err := secrets.CreateSecret(t.Context(), &secretsmanager.CreateSecretInput{Name: &name,
			SecretString: aws.String("value")})
		if err != nil {
			t.Fatal(err)
		}
		if name == "key" {
			arn = *out.ARN
		}
		if _, err := parameters.PutParameter(t.Context(), &ssm.PutParameterInput{Name: aws.String("/nstance/" + name),
			Value: aws.String("value"), Type: types.ParameterTypeSecureString}); err != nil {
			t.Fatal(err)
		}
	}
	w.allow(t, "server",
		`{"Effect":"Allow","Action":"secretsmanager:GetSecretValue","Resource":"arn:aws:secretsmanager:us-west-2:123456789012:secret:key-??????"}`,
		`{"Effect":"Allow","Action":"ssm:GetParameter","Resource":"arn:aws:ssm:us-west-2:123456789012:parameter/nstance/key"}`)
	server := w.role("server", "s1")
	secrets, parameters = secretsmanager.NewFromConfig(server), ssm.NewFromConfig(server)
	secret := func(id string) error {
		_, err := secrets.GetSecretValue(t.Context(), &secretsmanager.GetSecretValueInput{SecretId: &id})
		return err
	}
	for _, id := range []string{"key", arn} {
		if err := secret(id); err != nil {
			t.Error(err)
		}
	}
	wantCode(t, secret("other"), "AccessDeniedException")
	wantCode(t, secret("none"), "AccessDeniedException")
	_, err := secrets.PutSecretValue(t.Context(), &secretsmanager.PutSecretValueInput{SecretId: &arn,
		SecretString: aws.String("x")})
	wantCode(t, err, "AccessDeniedException")
	if _, err := parameters.GetParameter(t.Context(), &ssm.GetParameterInput{Name: aws.String("/nstance/key"),
		WithDecryption: aws.Bool(true)}); err != nil {
		t.Error(err)
	}
	_, err = parameters.GetParameter(t.Context(), &ssm.GetParameterInput{Name: aws.String("/nstance/other")})
	wantCode(t, err, "AccessDeniedException")

}

func TestOtherRegion(t *testing.T) {
	w := newTestCloud(t)
	c := w.root()
	c.Region = "eu-north-1"
	if _, err := sts.NewFromConfig(c).GetCallerIdentity(t.Context(), nil); err != nil {
		t.Error(err)
	}
	_, err := ssm.NewFromConfig(c).GetParameter(t.Context(), &ssm.GetParameterInput{Name: aws.String("a")})
	wantCode(t, err, "SignatureDoesNotMatch")
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Authorization", "Bearer x")
	answer := httptest.NewRecorder()
	w.ServeHTTP(answer, r)
	if answer.Code != http.StatusForbidden || !strings.Contains(answer.Body.String(), "IncompleteSignature") {
		t.Errorf("got %d %s", answer.Code, answer.Body)
	}
}
