package traces

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-kit/nstance/services/internal/server/journal"
)

// environment is a set of variables.
type environment map[string]string

func (e environment) get(name string) string { return e[name] }

// TestOffByDefault checks which variables turn traces on.
func TestOffByDefault(t *testing.T) {
	for name, tc := range map[string]struct {
		env  environment
		on   bool
		want string // in the error
	}{
		"nothing":          {environment{}, false, ""},
		"an endpoint":      {environment{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, true, ""},
		"its own endpoint": {environment{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost/x"}, true, ""},
		"otlp":             {environment{"OTEL_TRACES_EXPORTER": "otlp"}, true, ""},
		"none": {environment{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost"},
			false, ""},
		"disabled": {environment{"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, false, ""},
		"zipkin":   {environment{"OTEL_TRACES_EXPORTER": "zipkin"}, false, "use otlp"},
		"grpc": {environment{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, false,
			"use http/protobuf"},
	} {
		t.Run(name, func(t *testing.T) {
			on, err := enabled(tc.env.get)
			if on != tc.on || (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("on %v, %v; want %v, %q", on, err, tc.on, tc.want)
			}
		})
	}
	off, err := Open(t.Context(), environment{}.get, "nstance-server", "v1", slog.New(slog.DiscardHandler))
	if err != nil || off != nil {
		t.Fatalf("without variables: %v, %v", off, err)
	}
	off.Export("c", "a", &journal.Replacement{})
	off.Close()
}

// TestExport checks the trace of a replacement, as a collector receives it.
func TestExport(t *testing.T) {
	received := make(chan *collector.ExportTraceServiceRequest, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := &collector.ExportTraceServiceRequest{}
		if err == nil {
			err = proto.Unmarshal(body, request)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL, err)
			return
		}
		received <- request
	}))
	defer server.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	env := environment{"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL}
	e, err := Open(t.Context(), env.get, "nstance-server", "v1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t0 := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	at := func(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }
	e.Export("example", "a", &journal.Replacement{Tenant: "prod", Group: "web", Instance: "new", Replaces: "old",
		Cause: "gone", Lost: at(0), Creating: at(1), Created: at(3), Registers: at(20), Registered: at(21),
		Healthy: at(25)})
	e.Close()
	request := <-received
	var spans []*tracev1.Span
	attributes := map[string]string{}
	for _, resource := range request.GetResourceSpans() {
		for _, a := range resource.GetResource().GetAttributes() {
			attributes[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, scope := range resource.GetScopeSpans() {
			spans = append(spans, scope.GetSpans()...)
		}
	}
	if attributes["service.name"] != "nstance-server" || attributes["service.version"] != "v1" ||
		attributes["deployment.environment.name"] != "test" {
		t.Errorf("the resource is %v", attributes)
	}
	took := map[string]time.Duration{}
	var whole *tracev1.Span
	for _, span := range spans {
		took[span.GetName()] = time.Duration(span.GetEndTimeUnixNano() - span.GetStartTimeUnixNano())
		if span.GetName() == "replacement" {
			whole = span
		}
	}
	for name, want := range map[string]int{"replacement": 25, "decide": 1, "create": 2, "boot": 17, "register": 1,
		"healthy": 4} {
		if took[name] != time.Duration(want)*time.Second {
			t.Errorf("span %s takes %v, want %d s", name, took[name], want)
		}
	}
	if whole == nil || len(spans) != 6 {
		t.Fatalf("%d spans, want 6", len(spans))
	}
	for _, span := range spans {
		if span != whole && string(span.GetParentSpanId()) != string(whole.GetSpanId()) {
			t.Errorf("span %s is not below the replacement", span.GetName())
		}
	}
	for _, a := range whole.GetAttributes() {
		attributes[a.GetKey()] = a.GetValue().GetStringValue()
	}
	if attributes["nstance.shard"] != "a" || attributes["nstance.instance"] != "new" ||
		attributes["nstance.cause"] != "gone" {
		t.Errorf("the attributes are %v", attributes)
	}
}
