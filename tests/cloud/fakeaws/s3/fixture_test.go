package s3_test

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/google/uuid"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/auth"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/s3"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

const (
	region  = "us-west-2"
	account = "123456789012"
)

// binary returns the path of versitygw, the real S3 server.
var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("NSTANCE_VERSITYGW"); path != "" {
		return path, nil
	}
	build := exec.Command("../../../../scripts/tool.sh", "versitygw")
	build.Stderr = os.Stderr
	out, err := build.Output()
	return strings.TrimSpace(string(out)), err
})

// testFront is the fake S3 in front of a real S3 server, with two callers: the account, and a role with a policy.
type testFront struct {
	*sdk.Client // the account's
	t           *testing.T
	service     *s3.Service
	url         string

	mu     sync.Mutex
	policy *policy.Document // of the role
	asked  []string         // "s3:GetObject arn:… allowed"
}

func newTestFront(t *testing.T) *testFront {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatalf("build versitygw: %v", err)
	}
	backend, stop, err := s3.Start(t.Context(), t.TempDir(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if output := stop(); t.Failed() {
			t.Logf("output of versitygw:\n%s", output)
		}
	})
	w := &testFront{t: t}
	if w.service, err = s3.New(s3.Config{Region: region, Account: account, Backend: backend}); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(w)
	t.Cleanup(func() {
		server.Close()
		w.service.Close()
	})
	w.url = server.URL
	w.Client = w.as("account")
	return w
}

// as returns a client with the keys of the account or the role.
func (f *testFront) as(who string) *sdk.Client {
	return sdk.New(sdk.Options{
		Region: region, BaseEndpoint: aws.String(f.url), UsePathStyle: true, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(who, "secret-of-the-test", ""),
	})
}

// may gives the role a policy with these statements.
func (f *testFront) may(statements ...string) {
	f.t.Helper()
	doc, err := policy.Parse(policy.Identity, `{"Version":"2012-10-17","Statement":[`+strings.Join(statements, ",")+
		`]}`)
	if err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.policy = doc
}

func allow(resource string, actions ...string) string {
	return `{"Effect":"Allow","Action":["` + strings.Join(actions, `","`) + `"],"Resource":"` + resource + `"}`
}

// ServeHTTP authenticates the caller and authorizes the call, like the complete fake AWS.
func (f *testFront) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	c := &wire.Call{Context: r.Context(), Service: "s3", RequestID: uuid.NewString(), Request: r, Now: time.Now()}
	signature, err := auth.Read(r)
	if err == nil && signature == nil {
		c.Principal = wire.Principal{ARN: "*", Account: "anonymous"}
	}
	if err == nil && signature != nil {
		lookup := func(string) (auth.Key, bool) { return auth.Key{Secret: "secret-of-the-test"}, true }
		err = signature.Verify(r, nil, lookup, c.Now)
		c.Region = signature.Region
		c.Principal = wire.Principal{ARN: "arn:aws:iam::" + account + ":root", Account: account}
		if signature.Access == "role" {
			c.Principal = wire.Principal{ARN: "arn:aws:sts::" + account + ":assumed-role/reader/s", Account: account,
				Role: "reader", Session: "s"}
		}
	}
	if err == nil {
		c.Authorize = func(action, resource string, conditions policy.Context) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			p := policy.Policies{Resource: c.ResourcePolicy}
			caller := policy.Caller{ARN: c.Principal.ARN, Account: account}
			if c.Principal.Role != "" {
				caller.RoleARN, p.Identity = "arn:aws:iam::"+account+":role/reader", []*policy.Document{f.policy}
			}
			d := policy.Evaluate(p, policy.Request{Action: action, Resource: resource, Caller: caller,
				Context: conditions})
			if !d.Allowed {
				f.asked = append(f.asked, action+" "+resource+" denied")
				return wire.Errorf(403, "AccessDenied", "%s", d.Reason)
			}
			f.asked = append(f.asked, action+" "+resource)
			return nil
		}
		err = f.service.Serve(rw, c)
	}
	if err != nil {
		wire.WriteError(rw, "s3", c.RequestID, err)
	}
}

func (f *testFront) bucket(name string) {
	f.t.Helper()
	_, err := f.CreateBucket(f.t.Context(), &sdk.CreateBucketInput{
		Bucket: &name, CreateBucketConfiguration: &types.CreateBucketConfiguration{LocationConstraint: region},
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *testFront) put(bucket, key, body string) *sdk.PutObjectOutput {
	f.t.Helper()
	out, err := f.PutObject(f.t.Context(), &sdk.PutObjectInput{Bucket: &bucket, Key: &key,
		Body: strings.NewReader(body)})
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

func must[T any](out T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

func wantCode(t *testing.T, what string, err error, code string) {
	t.Helper()
	var e smithy.APIError
	if !errors.As(err, &e) || e.ErrorCode() != code {
		t.Errorf("%s: error = %v, want %s", what, err, code)
	}
}

// TestMain skips the package in `go test -short`: nearly all tests need the real S3 server, which takes minutes to
// build.
func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("S3 is not tested with -short: it takes a real server")
		return
	}
	os.Exit(m.Run())
}
