package externalmetric

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

const token = "s3cr3t-t0ken"

// secrets are those of the tests, by name.
func secrets(_ context.Context, name string) ([]byte, error) {
	switch name {
	case "prom":
		return []byte(token + "\n"), nil
	case "words":
		return []byte("two words"), nil
	case "locked":
		return nil, errors.New("the store says " + token)
	}
	return nil, fmt.Errorf("%q: %w", name, secretstore.ErrNotFound)
}

// reader returns a Reader that trusts a test server.
func reader(t *testing.T, server *httptest.Server) *Reader {
	t.Helper()
	r := New(secrets)
	if server.TLS != nil {
		r.transport.TLSClientConfig.RootCAs = server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	}
	t.Cleanup(r.Close)
	return r
}

func named(secret string) *config.TokenSource {
	return &config.TokenSource{Kind: "secret", Source: secret}
}

func answer(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }
}

func status(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}
}

// vector is an answer of Prometheus with the given values.
func vector(values ...string) http.HandlerFunc {
	var series []string
	for _, v := range values {
		series = append(series, `{"metric": {}, "value": [1700000000, "`+v+`"]}`)
	}
	return answer(`{"status": "success", "data": {"resultType": "vector", "result": [` + strings.Join(series, ",") + `]}}`)
}

func result(kind, result string) http.HandlerFunc {
	return answer(`{"status": "success", "data": {"resultType": "` + kind + `", "result": ` + result + `}}`)
}

func redirect(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, "https://elsewhere.example/"+r.Header.Get("Authorization"), http.StatusFound)
}

// long answers with 10 MiB.
func long(w http.ResponseWriter, _ *http.Request) {
	piece := []byte(strings.Repeat(" ", 1<<20))
	for range 10 {
		if _, err := w.Write(piece); err != nil {
			return
		}
	}
	_, _ = w.Write([]byte("1"))
}

func TestRead(t *testing.T) {
	url := func(json string) config.ScalingMetric {
		return config.ScalingMetric{URL: &config.ScalingURL{Name: "waiting", JSON: json, Token: named("prom")}}
	}
	open := config.ScalingMetric{URL: &config.ScalingURL{Name: "waiting"}}
	query := config.ScalingMetric{Query: &config.ScalingQuery{Query: "sum(a)", Token: named("prom")}}
	secret := func(name string) config.ScalingMetric {
		return config.ScalingMetric{URL: &config.ScalingURL{Token: named(name)}}
	}
	guarded := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token || r.TLS == nil || r.Method != http.MethodGet ||
			r.URL.RawQuery != "key=hidden" {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = w.Write([]byte(`{"waiting": [1, 12.5]}`))
	}
	prometheus := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token || r.URL.Path != "/base/api/v1/query" ||
			r.FormValue("query") != "sum(a)" {
			w.WriteHeader(http.StatusTeapot)
		}
		vector("3")(w, r)
	}
	for _, test := range []struct {
		name    string
		handle  http.HandlerFunc
		metric  config.ScalingMetric
		want    float64
		problem string
	}{
		{"a number in JSON", guarded, url("/waiting/1"), 12.5, ""},
		{"a number", answer(" 7\n"), url(""), 7, ""},
		{"zero", answer("0"), url(""), 0, ""},
		{"a vector", prometheus, query, 3, ""},
		{"a scalar", result("scalar", `[1, "4.5"]`), query, 4.5, ""},

		{"no such value", guarded, url("/wating"), 0, `the answer has no value at "/wating"`},
		{"no number", guarded, url("/waiting"), 0, `the value at "/waiting" is a list and not a number`},
		{"a text", answer(`{"a": "7"}`), url("/a"), 0, `the value at "/a" is a text and not a number`},
		{"NaN in JSON", answer("NaN"), url(""), 0, "the answer is not JSON"},
		{"Inf in JSON", answer("1e999"), url(""), 0, "is a number that is too large"},
		{"negative", answer("-3"), url(""), 0, "the number is -3, which is negative"},
		{"too large", answer("2e12"), url(""), 0, "the number is 2e+12, which is more than 1e+12"},
		{"HTML", answer("<html>" + token), url(""), 0, "the answer is not JSON"},
		{"nothing", answer(""), url(""), 0, "the answer is not JSON"},
		{"10 MiB", long, url(""), 0, "the answer is longer than 1048576 bytes"},
		{"wrong token", status(401, token), url(""), 0,
			`it answers "401 Unauthorized": the secret prom must hold a token that it accepts`},
		{"forbidden", status(403, token), url(""), 0, `it answers "403 Forbidden": the secret prom must hold`},
		{"no token", status(401, ""), open, 0, `it answers "401 Unauthorized": configure a token that it accepts`},
		{"a failure", status(500, "1"), url(""), 0, `it answers "500 Internal Server Error"`},
		{"unavailable", status(503, "1"), url(""), 0, `it answers "503 Service Unavailable"`},
		{"an unknown status", status(299, "1"), url(""), 0, `it answers "299"`},
		{"a redirect", redirect, url(""), 0, `it answers "302 Found" and redirects: configure the URL`},
		{"a broken answer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = w.Write([]byte("1"))
		}, url(""), 0, "the connection ended without a complete answer"},
		{"a missing secret", guarded, secret("gone"), 0, "there is no secret gone, which must hold the token"},
		{"a secret that is no token", guarded, secret("words"), 0, "the secret words is not a token"},
		{"a secret that cannot be read", guarded, secret("locked"), 0, "the secret locked, which holds the token"},

		{"NaN", vector("NaN"), query, 0, "the number is NaN"},
		{"Inf", vector("+Inf"), query, 0, "the number is +Inf, which is more than"},
		{"-Inf", vector("-Inf"), query, 0, "the number is -Inf, which is negative"},
		{"negative result", vector("-1"), query, 0, "the number is -1, which is negative"},
		{"two series", vector("1", "2"), query, 0, "the result has 2 series: make them one, such as with sum()"},
		{"an empty result", vector(), query, 0, `the result has no series: if that means 0, append "or vector(0)"`},
		{"a matrix", result("matrix", `[{"metric": {}, "values": [[1, "1"]]}]`), query, 0, "the result is a matrix"},
		{"a string", result("string", `[1, "a"]`), query, 0, "the answer is not one of Prometheus"},
		{"an unknown type", result("tensor", `[]`), query, 0, "the answer is not one of Prometheus"},
		{"a histogram", result("vector", `[{"metric": {}, "histogram": [1, {"count": "1", "sum": "1"}]}]`), query, 0,
			"the result is a histogram"},
		{"HTML of Prometheus", answer("<html>" + token), query, 0, "the answer is not one of Prometheus: check"},
		{"no data", answer(`{"status": "success"}`), query, 0, "the answer is not one of Prometheus"},
		{"null", answer(`null`), query, 0, "the answer is not one of Prometheus"},
		{"10 MiB of Prometheus", long, query, 0, "the answer is longer than"},
		{"a bad query", status(400, `{"status": "error", "errorType": "bad_data", "error": "parse\nerror"}`), query, 0,
			`it answers "parse error": check the query`},
		{"a message with the token", status(400, `{"status": "error", "errorType": "bad_data", "error": "`+token+`"}`),
			query, 0, `it answers "400 Bad Request"`},
		{"a refused token of Prometheus", status(401, token), query, 0, "the secret prom must hold a token"},
		{"forbidden by Prometheus", status(403, token), query, 0, "the secret prom must hold a token"},
		{"a failure of Prometheus", status(502, "<html>"), query, 0, `it answers "502 Bad Gateway"`},
		{"a proxy's failure", status(503, "<html>"), query, 0, `it answers "503 Service Unavailable"`},
		{"a redirect of Prometheus", redirect, query, 0, "and redirects"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewTLSServer(test.handle)
			defer server.Close()
			m := test.metric
			at := server.URL + "/base"
			if m.URL != nil {
				copied := *m.URL
				copied.URL = at + "?key=hidden"
				m.URL = &copied
			} else {
				copied := *m.Query
				copied.Prometheus = at
				m.Query = &copied
			}
			got, err := reader(t, server).Read(t.Context(), m)
			if test.problem == "" && err != nil || got != test.want {
				t.Fatalf("%v, %v, want %v", got, err, test.want)
			}
			if test.problem == "" {
				return
			}
			prefix := m.Name() + " cannot be read from " + at + ": "
			if err == nil || !strings.HasPrefix(err.Error(), prefix) || !strings.Contains(err.Error(), test.problem) {
				t.Errorf("%v, want %s%s", err, prefix, test.problem)
			}
			if err != nil && (strings.Contains(err.Error(), token) || strings.Contains(err.Error(), "hidden") ||
				len(err.Error()) > 500) {
				t.Errorf("the error tells too much: %v", err)
			}
		})
	}
}

// TestReadUnreachable checks the errors of URLs that give no answer.
func TestReadUnreachable(t *testing.T) {
	read := func(r *Reader, url string) string {
		t.Helper()
		_, err := r.Read(t.Context(), config.ScalingMetric{URL: &config.ScalingURL{URL: url}})
		if err == nil {
			t.Fatalf("%s was read", url)
		}
		return err.Error()
	}
	plain := httptest.NewServer(answer("1"))
	defer plain.Close()
	if got := read(reader(t, plain), strings.Replace(plain.URL, "http:", "https:", 1)); !strings.HasSuffix(got,
		": it does not speak TLS") {
		t.Error(got)
	}
	encrypted := httptest.NewTLSServer(answer("1"))
	if got := read(New(secrets), encrypted.URL); !strings.Contains(got, "do not trust its certificate: x509: ") {
		t.Error(got)
	}
	trusting := reader(t, encrypted)
	encrypted.Close()
	if got := read(trusting, encrypted.URL); !strings.HasSuffix(got,
		": no connection (connection refused): the shard's servers must be able to connect to it") {
		t.Error(got)
	}

	var asked atomic.Int64
	ended := make(chan struct{})
	slow := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path == "/body" {
			_, _ = w.Write([]byte("1"))
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
		ended <- struct{}{}
	}))
	defer slow.Close()
	impatient := reader(t, slow)
	impatient.timeout = 50 * time.Millisecond
	for _, path := range []string{"/", "/body"} {
		if got := read(impatient, slow.URL+path); !strings.HasSuffix(got,
			": it has not answered within 50ms: the shard's servers must be able to connect to it") {
			t.Error(got)
		}
		<-ended
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// FuzzQueryResult checks that no answer yields a number that is not one, or a panic.
func FuzzQueryResult(f *testing.F) {
	for _, seed := range []string{`{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"a":
		"b"}, "value": [1700000000, "3"]}]}}`, `{"status": "success", "data": {"resultType": "scalar", "result": [1, "NaN"]}}`,
		`{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "histogram": [1, {"count": "1"}]}]}}`,
		`{"status": "error", "errorType": "bad_data", "error": "x"}`, `{"status": "success", "data": null}`, "<html>"} {
		f.Add([]byte(seed), 200)
		f.Add([]byte(seed), 400)
	}
	f.Fuzz(func(t *testing.T, body []byte, code int) {
		q := &config.ScalingQuery{Prometheus: "https://prometheus.example", Query: "a"}
		c := &call{transport: roundTrip(func(*http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			w.WriteHeader(min(max(code, 200), 599))
			_, _ = w.Write(body)
			return w.Result(), nil
		})}
		value, err := c.query(t.Context(), q)
		if err == nil {
			err = check(value)
		}
		if err == nil && !(value >= 0 && value <= plan.MaxScalingValue) {
			t.Errorf("%v", value)
		}
		if err != nil && len(err.Error()) > 2*maxMessage+100 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	})
}
