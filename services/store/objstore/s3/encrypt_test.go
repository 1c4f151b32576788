package s3_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/s3"
)

// account is a fake of S3 and STS. Its bucket's policy demands encryption, and only the role may write.
type account struct {
	algorithm, key string // that puts must have
}

const roleARN = "arn:aws:iam::123456789012:role/state"

func (a account) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	signed := r.Header.Get("Authorization")
	switch {
	case r.Method == http.MethodPost:
		if r.FormValue("Action") != "AssumeRole" || r.FormValue("RoleArn") != roleARN ||
			r.FormValue("ExternalId") != "outside" || r.FormValue("RoleSessionName") != "tofu" ||
			!strings.Contains(signed, "Credential=PROFILE/") {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "<ErrorResponse><Error><Code>AccessDenied</Code><Message>wrong call</Message></Error>"+
				"</ErrorResponse>")
			return
		}
		fmt.Fprint(w, `<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ROLE</AccessKeyId>
			<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>
			<Expiration>2100-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`)
	case !strings.Contains(signed, "Credential=ROLE/"):
		deny(w, "not the role: "+signed)
	case r.Header.Get("X-Amz-Server-Side-Encryption") != a.algorithm,
		r.Header.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id") != a.key:
		deny(w, "not encrypted")
	default:
		w.Header().Set("ETag", `"1"`)
	}
}

func deny(w http.ResponseWriter, why string) {
	w.WriteHeader(http.StatusForbidden)
	fmt.Fprintf(w, "<Error><Code>AccessDenied</Code><Message>%s</Message></Error>", why)
}

// TestProfileRoleAndEncryption writes with the credentials of a role, which those of a profile assume, and with the
// headers for encryption that a bucket policy demands.
func TestProfileRoleAndEncryption(t *testing.T) {
	const key = "arn:aws:kms:us-east-1:123456789012:key/1"
	for name, test := range map[string]struct {
		account     account
		change      func(*objstore.Location)
		environment map[string]string
		refused     string
	}{
		"S3's keys": {account{"AES256", ""}, func(l *objstore.Location) { l.Encrypt = true }, nil, ""},
		"a KMS key": {account{"aws:kms", key}, func(l *objstore.Location) { l.KMSKeyID = key }, nil, ""},
		"both, as in a backend": {account{"aws:kms", key}, func(l *objstore.Location) {
			l.Encrypt, l.KMSKeyID = true, key
		}, nil, ""},
		"S3's keys by environment": {account{"AES256", ""}, nil, map[string]string{"NSTANCE_S3_ENCRYPT": "true"}, ""},
		"a KMS key by environment": {account{"aws:kms", key}, nil, map[string]string{"NSTANCE_S3_KMS_KEY_ID": key}, ""},
		"no header":                {account{}, nil, nil, ""},
		"a header is missing":      {account{"AES256", ""}, nil, nil, "not encrypted"},
		"another role": {account{}, func(l *objstore.Location) {
			l.AssumeRole.ARN += "2"
		}, nil, "wrong call"},
		"no role": {account{}, func(l *objstore.Location) {
			l.AssumeRole = cloud.Role{}
		}, nil, "not the role"},
		"another profile": {account{}, func(l *objstore.Location) { l.Profile = "none" }, nil, "none"},
		"no boolean": {account{}, nil, map[string]string{"NSTANCE_S3_ENCRYPT": "sure"},
			"NSTANCE_S3_ENCRYPT"},
	} {
		t.Run(name, func(t *testing.T) {
			hermetic(t)
			credentials := filepath.Join(t.TempDir(), "credentials")
			if err := os.WriteFile(credentials, []byte("[state]\naws_access_key_id = PROFILE\n"+
				"aws_secret_access_key = s\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			server := httptest.NewServer(test.account)
			t.Cleanup(server.Close)
			t.Setenv("AWS_SHARED_CREDENTIALS_FILE", credentials)
			t.Setenv("AWS_ENDPOINT_URL", server.URL)
			for name, value := range test.environment {
				t.Setenv(name, value)
			}
			at := objstore.Location{Provider: "s3", Bucket: bucket, Region: "us-east-1", PathStyle: true,
				Profile:    "state",
				AssumeRole: cloud.Role{ARN: roleARN, ExternalID: "outside", SessionName: "tofu"}}
			if test.change != nil {
				test.change(&at)
			}
			store, err := s3.Backend.Open(t.Context(), at)
			if err == nil {
				_, err = store.Put(t.Context(), "k", []byte("x"), objstore.IfAbsent())
			}
			if test.refused == "" && err != nil || test.refused != "" && (err == nil ||
				!strings.Contains(err.Error(), test.refused)) {
				t.Errorf("%v, want %q", err, test.refused)
			}
		})
	}
}
