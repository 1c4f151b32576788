package imds_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/imds"
)

func TestMetadata(t *testing.T) { synctest.Test(t, testMetadata) }

func testMetadata(t *testing.T) {
	tree := map[string]string{"": "iam/\ninstance-id", "instance-id": "i-1", "iam/security-credentials/": "agent",
		"iam/security-credentials/agent": "{}"}
	userdata := "#!/bin/sh\n# \x01 raw\n"
	strict := imds.New(imds.Options{ID: "i-1", Userdata: []byte(userdata), TokensRequired: true,
		Value: func(path string) (string, bool) {
			value, ok := tree[path]
			return value, ok
		}})
	lax := imds.New(imds.Options{ID: "i-2",
		Value: func(path string) (string, bool) { return "i-2", path == "instance-id" }})
	ask := func(service http.Handler, method, path string, header map[string]string) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
		for k, v := range header {
			r.Header.Set(k, v)
		}
		answer := httptest.NewRecorder()
		service.ServeHTTP(answer, r)
		return answer.Code, answer.Body.String()
	}
	const ttl, tokenHeader = "X-aws-ec2-metadata-token-ttl-seconds", "X-aws-ec2-metadata-token"
	code, token := ask(strict, "PUT", "/latest/api/token", map[string]string{ttl: "21600"})
	if code != 200 || len(token) != 56 {
		t.Fatalf("no token: %d %q", code, token)
	}
	_, short := ask(strict, "PUT", "/latest/api/token", map[string]string{ttl: "1"})
	with := map[string]string{tokenHeader: token}
	for _, c := range []struct {
		service      http.Handler
		method, path string
		header       map[string]string
		code         int
		text         string
	}{
		{strict, "PUT", "/latest/api/token", nil, 400, ""},
		{strict, "PUT", "/latest/api/token", map[string]string{ttl: "21601"}, 400, ""},
		{strict, "PUT", "/latest/api/token", map[string]string{ttl: "60", "X-Forwarded-For": "10.0.0.9"}, 403, ""},
		{strict, "GET", "/latest/api/token", nil, 405, ""},
		{strict, "GET", "/latest/meta-data/instance-id", nil, 401, ""},
		{strict, "GET", "/latest/meta-data/instance-id", map[string]string{tokenHeader: "wrong"}, 401, ""},
		{strict, "GET", "/latest/meta-data/instance-id", with, 200, "i-1"},
		{strict, "GET", "/2021-03-23/meta-data/instance-id", with, 200, "i-1"},
		{strict, "GET", "/2021/meta-data/instance-id", with, 404, ""},
		{strict, "GET", "/latest/meta-data/", with, 200, tree[""]},
		{strict, "GET", "/latest/meta-data", with, 200, tree[""]},
		{strict, "GET", "/latest/meta-data/iam/security-credentials", with, 200, "agent"},
		{strict, "GET", "/latest/meta-data/iam/security-credentials/", with, 200, "agent"},
		{strict, "GET", "/latest/meta-data/iam/security-credentials/agent", with, 200, "{}"},
		{strict, "GET", "/latest/meta-data/spot/instance-action", with, 404, ""},
		{strict, "POST", "/latest/meta-data/instance-id", with, 405, ""},
		{strict, "GET", "/latest/user-data", with, 200, userdata},
		{lax, "GET", "/latest/user-data", nil, 404, ""},
		{lax, "GET", "/latest/meta-data/instance-id", nil, 200, "i-2"},
		{lax, "GET", "/latest/meta-data/instance-id", with, 401, ""}, // A token of another machine.
	} {
		code, text := ask(c.service, c.method, c.path, c.header)
		if code != c.code || code == 200 && text != c.text {
			t.Errorf("%s %s %v: %d %q", c.method, c.path, c.header, code, text)
		}
	}
	if code, text := ask(lax, "GET", "/latest/dynamic/instance-identity/document", nil); code != 200 ||
		!strings.Contains(text, `"instanceId": "i-2"`) {
		t.Errorf("identity: %d %s", code, text)
	}
	header := map[string]string{tokenHeader: short}
	if code, _ := ask(strict, "GET", "/latest/meta-data/instance-id", header); code != 200 {
		t.Errorf("with a fresh token: %d", code)
	}
	time.Sleep(time.Second)
	if code, _ := ask(strict, "GET", "/latest/meta-data/instance-id", header); code != 401 {
		t.Errorf("with an expired token: %d", code)
	}
}
