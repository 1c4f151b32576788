package open_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
)

// TestHintNamesTheCauseThatWasSeen breaks the way to a store in several ways. Each has its own advice, and a put that no
// connection carried is not called unknown.
func TestHintNamesTheCauseThatWasSeen(t *testing.T) {
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_ACCESS_KEY_ID", "dev")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "dev")
	t.Setenv("AWS_MAX_ATTEMPTS", "1")
	refusing := func(code string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	encrypted := httptest.NewTLSServer(http.NotFoundHandler())
	defer encrypted.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + listener.Addr().String()
	listener.Close()
	for _, test := range []struct {
		name, endpoint, hint string
		notSent              bool
	}{
		{"nothing listens", closed, "nothing listens at that address", true},
		{"no such host", "http://store.invalid", "store.invalid", true},
		{"foreign certificate", encrypted.URL, "certificate is not trusted", true},
		{"plain text to TLS", strings.Replace(plainText(t), "http:", "https:", 1), "does not speak TLS", true},
		{"no right", refusing("AccessDenied"), "the right to do this", false},
		{"wrong key", refusing("InvalidAccessKeyId"), "does not accept these AWS credentials", false},
		{"expired", refusing("ExpiredToken"), "have expired", false},
		{"wrong clock", refusing("RequestTimeTooSkewed"), "clock is wrong", false},
		{"other region", refusing("AuthorizationHeaderMalformed"), "another region", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			store, err := open.Open(t.Context(), objstore.Location{Provider: "s3", Bucket: "dev", Region: "us-east-1",
				Endpoint: test.endpoint, PathStyle: true})
			if err != nil {
				t.Fatal(err)
			}
			_, err = store.Put(t.Context(), "k", []byte("x"), objstore.IfAbsent())
			if hint := open.Hint(err); !strings.Contains(hint, test.hint) {
				t.Errorf("hint %q for %v, want %q", hint, err, test.hint)
			}
			if errors.Is(err, objstore.ErrNotSent) != test.notSent {
				t.Errorf("not sent = %v: %v", !test.notSent, err)
			}
			if test.notSent && (!errors.Is(err, objstore.ErrIndeterminate) ||
				strings.Contains(err.Error(), objstore.ErrIndeterminate.Error())) {
				t.Errorf("a put that was not sent is to be tried again, and is not unknown: %v", err)
			}
		})
	}
	if hint := open.Hint(fmt.Errorf("s3: get: request send failed, AccessDenied: %w", context.Canceled)); hint != "" {
		t.Errorf("advice %q after Ctrl-C", hint)
	}
}

// TestHintNamesTheRoleProfileOrKey has errors of a role, a profile and a KMS key. The bucket is not their cause.
func TestHintNamesTheRoleProfileOrKey(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		if r.Method == http.MethodPost { // STS
			fmt.Fprint(w, "<ErrorResponse><Error><Code>AccessDenied</Code><Message>User: arn:aws:iam::1:user/u is not "+
				"authorized to perform: sts:AssumeRole on resource: R</Message></Error></ErrorResponse>")
			return
		}
		fmt.Fprint(w, "<Error><Code>AccessDenied</Code><Message>User: arn:aws:iam::1:user/u is not authorized to "+
			"perform: kms:GenerateDataKey on resource: K</Message></Error>")
	}))
	defer server.Close()
	for name, value := range map[string]string{"AWS_CONFIG_FILE": filepath.Join(t.TempDir(), "none"),
		"AWS_SHARED_CREDENTIALS_FILE": filepath.Join(t.TempDir(), "none"), "AWS_ACCESS_KEY_ID": "dev",
		"AWS_SECRET_ACCESS_KEY": "dev", "AWS_MAX_ATTEMPTS": "1", "AWS_ENDPOINT_URL": server.URL} {
		t.Setenv(name, value)
	}
	for want, change := range map[string]func(*objstore.Location){
		"assume the role":    func(l *objstore.Location) { l.AssumeRole.ARN = "arn:aws:iam::123456789012:role/r" },
		"no profile":         func(l *objstore.Location) { l.Profile = "mistyped" },
		"to use the KMS key": func(l *objstore.Location) { l.KMSKeyID = "K" },
	} {
		at := objstore.Location{Provider: "s3", Bucket: "dev", Region: "us-east-1", PathStyle: true}
		change(&at)
		store, err := open.Open(t.Context(), at)
		if err == nil {
			_, err = store.Put(t.Context(), "k", []byte("x"), objstore.IfAbsent())
		}
		if hint := open.Hint(err); !strings.Contains(hint, want) {
			t.Errorf("hint %q for %v, want %q", hint, err, want)
		}
	}
}

// plainText returns the URL of a server that speaks no TLS.
func plainText(t *testing.T) string {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	return server.URL
}

// TestOpenRefusesWrongPlaces opens stores whose name or endpoint would fail at each later request.
func TestOpenRefusesWrongPlaces(t *testing.T) {
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	for _, at := range []objstore.Location{
		{Provider: "s3", Bucket: "dev/prefix", Region: "us-east-1"},
		{Provider: "s3", Bucket: "s3://dev", Region: "us-east-1"},
		{Provider: "s3", Bucket: "dev", Region: "us-east-1", Prefix: "/a//b/"},
		{Provider: "file", Bucket: t.TempDir(), Prefix: "a/../b"},
		{Provider: "s3", Bucket: "dev", Region: "us-east-1", Endpoint: "http://127.0.0.1:9000/dev"},
		{Provider: "s3", Bucket: "dev", Region: "us-east-1", Endpoint: "127.0.0.1:9000"},
	} {
		if _, err := open.Open(t.Context(), at); err == nil {
			t.Errorf("%+v opened", at)
		}
		if at.Validate() == nil {
			t.Errorf("%+v is valid", at)
		}
	}
	t.Setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000/dev")
	if _, err := open.Open(t.Context(), objstore.Location{Provider: "s3", Bucket: "dev",
		Region: "us-east-1"}); err == nil {
		t.Error("an endpoint of the environment that ends in the bucket's name opened")
	}
}
