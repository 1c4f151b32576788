package bucket_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
)

const stateRole = "arn:aws:iam::123456789012:role/state"

// account is a fake of STS, Secrets Manager and Parameter Store. It records with which credentials and in which region
// each service was called.
type account struct {
	mu    sync.Mutex
	calls map[string]bool
}

func (a *account) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// AWS4-HMAC-SHA256 Credential=ACCESS/DATE/REGION/SERVICE/aws4_request, …
	_, signed, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	scope := strings.Split(signed, "/")
	a.mu.Lock()
	a.calls[fmt.Sprintf("%s as %s in %s", scope[3], scope[0], scope[2])] = true
	a.mu.Unlock()
	if scope[3] == "sts" {
		fmt.Fprint(w, `<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ROLE</AccessKeyId>
			<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>
			<Expiration>2100-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`)
		return
	}
	text := strings.Repeat("k", 32)
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	_ = json.NewEncoder(w).Encode(map[string]any{"Name": "n", "SecretString": text,
		"Parameter": map[string]string{"Name": "n", "Value": text}})
}

// TestServicesOfTheBucketsAccount reads keys and secrets from services of AWS. If the bucket is at AWS, the services
// must be called with the profile, the role and the region of the bucket.
func TestServicesOfTheBucketsAccount(t *testing.T) {
	at := objstore.Location{Provider: "s3", Bucket: "bucket", Region: "eu-central-1", Profile: "state",
		AssumeRole: cloud.Role{ARN: stateRole}}
	for name, test := range map[string]struct {
		change func(*objstore.Location)
		want   string
	}{
		"profile, role, region": {nil, "ROLE in eu-central-1"},
		"profile": {func(l *objstore.Location) {
			l.AssumeRole = cloud.Role{}
		}, "PROFILE in eu-central-1"},
		"role":      {func(l *objstore.Location) { l.Profile = "" }, "ROLE in eu-central-1"},
		"no region": {func(l *objstore.Location) { l.Region = "" }, "ROLE in us-west-2"},
		"an endpoint with another region": {func(l *objstore.Location) { l.Endpoint = "http://127.0.0.1:1" },
			"ROLE in us-west-2"},
		"another cloud": {func(l *objstore.Location) {
			*l = objstore.Location{Provider: "gcs", Bucket: "bucket", Region: "eu-central-1"}
		}, "ENVIRONMENT in us-west-2"},
	} {
		for _, service := range []string{"aws-secrets-manager", "aws-parameter-store"} {
			t.Run(name+", "+service, func(t *testing.T) {
				aws := &account{calls: map[string]bool{}}
				server := httptest.NewServer(aws)
				t.Cleanup(server.Close)
				credentials := filepath.Join(t.TempDir(), "credentials")
				if err := os.WriteFile(credentials, []byte("[state]\naws_access_key_id = PROFILE\n"+
					"aws_secret_access_key = s\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				for name, value := range map[string]string{
					"AWS_CONFIG_FILE": filepath.Join(t.TempDir(), "none"), "AWS_SHARED_CREDENTIALS_FILE": credentials,
					"AWS_ENDPOINT_URL": server.URL, "AWS_REGION": "us-west-2", "AWS_ACCESS_KEY_ID": "ENVIRONMENT",
					"AWS_SECRET_ACCESS_KEY": "s", "AWS_PROFILE": "", "AWS_SESSION_TOKEN": "",
				} {
					t.Setenv(name, value)
				}
				at := at
				if test.change != nil {
					test.change(&at)
				}
				connection := bucket.New(bucket.Settings{Storage: &at, Secrets: config.Secrets{Provider: service,
					Prefix: "/nstance/", EncryptionKey: &config.KeySource{Provider: service, Source: "/key"}}})
				want := map[string]string{"aws-secrets-manager": "secretsmanager",
					"aws-parameter-store": "ssm"}[service] + " as " + test.want
				for what, call := range map[string]func() error{
					"key": func() error { _, err := connection.Ring(t.Context()); return err },
					"secret": func() error {
						store, err := connection.Secrets(t.Context(), "c", keyring.Ring{})
						if err == nil {
							_, err = store.Get(t.Context(), secretstore.CAKey)
						}
						return err
					},
				} {
					clear(aws.calls)
					if err := call(); err != nil || !aws.calls[want] {
						t.Errorf("%s: %v, calls %v, want %s", what, err, aws.calls, want)
					}
				}
			})
		}
	}
}
