// Package federation tests, with the fakes of both clouds, that servers of one cloud reach the other cloud's services
// without a stored key.
package federation

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	awscredentials "github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/golang-jwt/jwt/v5"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/store/awscloud"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
)

const (
	account  = "111222333" // the number of the Google service account
	roleARN  = "arn:aws:iam::" + fakeaws.Account + ":role/nstance"
	poolPath = "projects/" + fakegcp.Number + "/locations/global/workloadIdentityPools/nstance"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newAWS starts a fake AWS that accepts identity tokens of the fake Google Cloud.
func newAWS(t *testing.T) (*fakeaws.Cloud, awssdk.Config) {
	t.Helper()
	c, err := fakeaws.New(fakeaws.Config{GoogleKeys: googleKeys})
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	access, secret := c.Credentials()
	return c, awssdk.Config{Region: c.Region(), BaseEndpoint: &server.URL,
		Credentials: awscredentials.NewStaticCredentialsProvider(access, secret, "")}
}

func googleKeys() (keys map[string]string, err error) {
	answer := httptest.NewRecorder()
	credentials.IdentityKeys(answer, nil)
	return keys, json.Unmarshal(answer.Body.Bytes(), &keys)
}

// makeRole makes a role with a trust policy.
func makeRole(t *testing.T, cfg awssdk.Config, name string, trust map[string]any) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"Version": "2012-10-17", "Statement": []any{trust}})
	must(t, err)
	_, err = iam.NewFromConfig(cfg).CreateRole(t.Context(), &iam.CreateRoleInput{RoleName: &name,
		AssumeRolePolicyDocument: awssdk.String(string(text))})
	must(t, err)
}

// TestFromGoogle assumes a role of AWS with the identity token of a Google Cloud VM.
func TestFromGoogle(t *testing.T) {
	_, cfg := newAWS(t)
	makeRole(t, cfg, "nstance", map[string]any{"Effect": "Allow", "Action": "sts:AssumeRoleWithWebIdentity",
		"Principal": map[string]any{"Federated": "accounts.google.com"},
		"Condition": map[string]any{"StringEquals": map[string]any{"accounts.google.com:sub": account,
			"accounts.google.com:aud": account, "accounts.google.com:oaud": roleARN}}})
	t.Setenv("AWS_ENDPOINT_URL", *cfg.BaseEndpoint)
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_REGION"} {
		t.Setenv(name, "")
	}
	var change func(jwt.MapClaims) // of the token
	tamper := func(token string) string { return token }
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		claims := jwt.MapClaims{"iss": "https://accounts.google.com", "aud": r.FormValue("audience"), "sub": account,
			"azp": account, "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
		change(claims)
		token, err := credentials.SignIdentity(claims)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprint(w, tamper(token))
	}))
	t.Cleanup(metadata.Close)
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(metadata.URL, "http://"))
	set := func(name string, value any) func(jwt.MapClaims) {
		return func(c jwt.MapClaims) { c[name] = value }
	}
	for _, c := range []struct {
		name    string
		change  func(jwt.MapClaims)
		tamper  func(string) string
		refused string
	}{
		{name: "right", change: func(jwt.MapClaims) {}},
		{name: "issuer", change: set("iss", "https://example.com"), refused: "InvalidIdentityToken"},
		{name: "audience", change: set("aud", "arn:aws:iam::123456789012:role/other"), refused: "AccessDenied"},
		{name: "subject", change: set("sub", "999"), refused: "AccessDenied"},
		{name: "authorized party", change: set("azp", "999"), refused: "AccessDenied"},
		{name: "expired", change: set("exp", time.Now().Add(-time.Minute).Unix()), refused: "ExpiredToken"},
		{name: "signature", change: func(jwt.MapClaims) {}, refused: "InvalidIdentityToken",
			tamper: func(token string) string { return token[:len(token)-8] + "AAAAAAAA" }},
	} {
		change, tamper = c.change, func(token string) string { return token }
		if c.tamper != nil {
			tamper = c.tamper
		}
		role, err := awscloud.Load(t.Context(), cloud.Access{Region: cfg.Region,
			AssumeRole: cloud.Role{ARN: roleARN, SessionName: "nstance-west", WithToken: true}})
		must(t, err)
		out, err := sts.NewFromConfig(role).GetCallerIdentity(t.Context(), &sts.GetCallerIdentityInput{})
		switch {
		case c.refused != "":
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: got %v, want %s", c.name, err, c.refused)
			}
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
		case !strings.HasSuffix(*out.Arn, "assumed-role/nstance/nstance-west"):
			t.Errorf("%s: the caller is %s", c.name, *out.Arn)
		}
	}
}

// TestFromAWS reads a bucket of Google Cloud with the credentials of an AWS role.
func TestFromAWS(t *testing.T) {
	aws, cfg := newAWS(t)
	for _, name := range []string{"server", "other"} {
		makeRole(t, cfg, name, map[string]any{"Effect": "Allow", "Action": "sts:AssumeRole",
			"Principal": map[string]any{"Service": "ec2.amazonaws.com"}})
	}
	google, err := fakegcp.New("us-central1-a")
	must(t, err)
	google.AWS = aws
	server := httptest.NewServer(google)
	t.Cleanup(server.Close)
	for name, value := range fakegcp.Environment(server.URL) {
		t.Setenv(name, value)
	}
	post := func(path, body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, strings.NewReader(body))
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+credentials.Token(credentials.Account))
		r.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(r)
		must(t, err)
		if _ = answer.Body.Close(); answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", path, answer.Status)
		}
	}
	project := "/iam/v1/projects/" + fakegcp.Project
	pools := project + "/locations/global/workloadIdentityPools"
	email := "nstance@" + fakegcp.Project + ".iam.gserviceaccount.com"
	post(pools+"?workloadIdentityPoolId=nstance", `{}`)
	for id, account := range map[string]string{"aws1": fakeaws.Account, "foreign": "999999999999"} {
		post(pools+"/nstance/providers?workloadIdentityPoolProviderId="+id, `{"aws": {"accountId": "`+account+`"}}`)
	}
	post(project+"/serviceAccounts", `{"accountId": "nstance"}`)
	post(project+"/serviceAccounts/"+email+":setIamPolicy", `{"policy": {"bindings": [{
		"role": "roles/iam.workloadIdentityUser", "members": ["principalSet://iam.googleapis.com/`+poolPath+
		`/attribute.aws_role/arn:aws:sts::`+fakeaws.Account+`:assumed-role/server"]}]}}`)
	post(project+"/roles", `{"roleId": "objects", "role": {"includedPermissions": ["storage.objects.list"]}}`)
	post("/storage/v1/b?project="+fakegcp.Project, `{"name": "shared-bucket"}`)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL+"/storage/v1/b/shared-bucket/iam",
		strings.NewReader(`{"bindings": [{"role": "projects/`+fakegcp.Project+`/roles/objects",
			"members": ["serviceAccount:`+email+`"]}]}`))
	must(t, err)
	r.Header.Set("Authorization", "Bearer "+credentials.Token(credentials.Account))
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	must(t, err)
	must(t, answer.Body.Close())

	right := cloud.Federation{PoolProvider: poolPath + "/providers/aws1", ServiceAccount: email}
	with := func(provider, account string) cloud.Federation {
		return cloud.Federation{PoolProvider: provider, ServiceAccount: account}
	}
	for _, c := range []struct {
		name, role string
		as         cloud.Federation
		env        map[string]string
		refused    string
	}{
		{name: "right", role: "server", as: right},
		{name: "another role", role: "other", as: right, refused: "iam.serviceAccounts.getAccessToken"},
		{name: "another account", role: "server", as: with(poolPath+"/providers/foreign", email),
			refused: "AWS account ID"},
		{name: "no such provider", role: "server", as: with(poolPath+"/providers/none", email),
			refused: "invalid_target"},
		{name: "another service account", role: "server",
			as: with(right.PoolProvider, "other@my-project.iam.gserviceaccount.com"), refused: "getAccessToken"},
		{name: "no credentials of this AWS", role: "server", as: right, refused: "SignatureDoesNotMatch",
			env: map[string]string{"AWS_SECRET_ACCESS_KEY": "wrong"}},
	} {
		access, secret, token := aws.RoleCredentials(c.role, "i-0123456789abcdef0")
		env := map[string]string{"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": cfg.Region,
			"AWS_SESSION_TOKEN": token, "AWS_ENDPOINT_URL": *cfg.BaseEndpoint}
		maps.Copy(env, c.env)
		for name, value := range env {
			t.Setenv(name, value)
		}
		store, err := open.Open(t.Context(), objstore.Location{Provider: "gcs", Bucket: "shared-bucket",
			Federation: c.as})
		must(t, err)
		_, err = store.List(t.Context(), "cluster/")
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused) ||
			!strings.Contains(err.Error(), googlecloud.Exchange)):
			t.Errorf("%s: got %v, want %s", c.name, err, c.refused)
		case c.refused != "" && !strings.Contains(open.Hint(err), "cluster.storage.identity"):
			t.Errorf("%s: the hint is %q", c.name, open.Hint(err))
		}
	}
}
