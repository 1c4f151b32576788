package fakeaws

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// careless is a service with faulty handlers. Some check no permission, or ignore a denial.
type careless struct{}

func (careless) Name() string { return "autoscaling" }

func (careless) Operations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"Forgets": func(*wire.Call) (any, error) { return nil, nil },
		"Ignores": func(c *wire.Call) (any, error) {
			_ = c.Authorize("autoscaling:Ignores", "*", nil)
			return nil, nil
		},
		"Fails": func(*wire.Call) (any, error) {
			return nil, wire.Errorf(400, "Odd", "refused before any output")
		},
		"Garbles": func(*wire.Call) (any, error) { return make(chan int), nil },
	}
}

// echo is a streaming service that answers with the request's body.
type echo struct{}

func (echo) Name() string                  { return "s3" }
func (echo) Action(r *http.Request) string { return r.Method }

func (echo) Serve(w http.ResponseWriter, c *wire.Call) error {
	if err := c.Authorize("s3:PutObject", "arn:aws:s3:::b/k", nil); err != nil {
		return err
	}
	body, err := io.ReadAll(c.Request.Body)
	if err != nil {
		return err
	}
	_, err = w.Write(append([]byte("got "), body...))
	return err
}

func testCloud(t *testing.T) (*Cloud, *httptest.Server) {
	t.Helper()
	c, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	c.add(careless{})
	c.streams["s3"] = echo{}
	server := httptest.NewServer(c)
	t.Cleanup(func() {
		server.Close()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, server
}

// send signs a request and returns the answer's status and body.
func send(t *testing.T, url, service, method, body string, key aws.Credentials) (int, string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key.AccessKeyID != "" {
		sum := sha256.Sum256([]byte(body))
		hash := hex.EncodeToString(sum[:])
		if service == "s3" {
			r.Header.Set("X-Amz-Content-Sha256", hash)
		}
		signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = service == "s3" })
		if err := signer.SignHTTP(context.Background(), key, r, hash, service, "us-west-2", time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	var out bytes.Buffer
	if _, err := out.ReadFrom(answer.Body); err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, out.String(), nil
}

func (c *Cloud) key(role string) aws.Credentials {
	var k aws.Credentials
	if role == "" {
		k.AccessKeyID, k.SecretAccessKey = c.Credentials()
		return k
	}
	k.AccessKeyID, k.SecretAccessKey, k.SessionToken = c.RoleCredentials(role, "me")
	return k
}

// makeRole makes a role that may put objects.
func makeRole(t *testing.T, c *Cloud, url string) {
	t.Helper()
	for _, form := range []string{
		`Action=CreateRole&Version=2010-05-08&RoleName=role&AssumeRolePolicyDocument={"Statement":{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}}`,
		`Action=PutRolePolicy&Version=2010-05-08&RoleName=role&PolicyName=p&PolicyDocument={"Statement":{"Effect":"Allow","Action":"s3:PutObject","Resource":"*"}}`,
	} {
		if status, body, err := send(t, url, "iam", http.MethodPost, form, c.key("")); err != nil ||
			status != http.StatusOK {
			t.Fatalf("%d %s %v", status, body, err)
		}
	}
}

func TestHandlersMustAuthorize(t *testing.T) {
	c, server := testCloud(t)
	makeRole(t, c, server.URL)
	for action, want := range map[string]struct {
		root, role int
		says       string
	}{
		"Forgets": {200, 500, "did not ask for permission"},
		"Ignores": {200, 500, "did what was denied"},
		"Fails":   {400, 400, "<Code>Odd</Code>"},
		"Garbles": {500, 500, "InternalFailure"},
		"Unknown": {400, 400, "<Code>InvalidAction</Code>"},
	} {
		form := "Version=2011-01-01&Action=" + action
		if status, body, err := send(t, server.URL, "autoscaling", http.MethodPost, form, c.key("")); err != nil ||
			status != want.root {
			t.Errorf("%s by the account: %d %s %v", action, status, body, err)
		}
		if status, body, err := send(t, server.URL, "autoscaling", http.MethodPost, form, c.key("role")); err != nil ||
			status != want.role || !strings.Contains(body, want.says) {
			t.Errorf("%s by a role: %d %s %v", action, status, body, err)
		}
	}
	if status, body, err := send(t, server.URL, "dynamodb", http.MethodPost, "", c.key("")); err != nil ||
		status != 404 {
		t.Errorf("a service that is not there: %d %s %v", status, body, err)
	}
}

func TestStreams(t *testing.T) {
	c, server := testCloud(t)
	makeRole(t, c, server.URL)
	if status, body, err := send(t, server.URL+"/b/k", "s3", http.MethodPut, "text", c.key("role")); err != nil ||
		status != 200 || body != "got text" {
		t.Errorf("%d %s %v", status, body, err)
	}
	// A request without a signature does not have the account's permissions.
	if status, body, err := send(t, server.URL+"/b/k", "", http.MethodPut, "text", aws.Credentials{}); err != nil ||
		status != 403 || !strings.Contains(body, "<Code>AccessDenied</Code>") {
		t.Errorf("%d %s %v", status, body, err)
	}
	c.Faults().Throttle(fault.Match{Service: "s3", Action: "PUT"}, 1)
	if status, body, err := send(t, server.URL+"/b/k", "s3", http.MethodPut, "text", c.key("role")); err != nil ||
		status != 503 || !strings.Contains(body, "<Error><Code>SlowDown</Code>") {
		t.Errorf("%d %s %v", status, body, err)
	}
	c.Faults().LoseAnswer(fault.Match{Service: "s3"}, 1)
	if status, body, err := send(t, server.URL+"/b/k", "s3", http.MethodPut, "text", c.key("role")); err == nil {
		t.Errorf("a lost answer came: %d %s", status, body)
	}
	calls := c.Calls()
	if last := calls[len(calls)-1]; !last.Lost || last.Code != "" || len(last.Checks) != 1 ||
		last.Checks[0].Action != "s3:PutObject" || last.Action != "PUT" {
		t.Errorf("recorded %+v", last)
	}
}
