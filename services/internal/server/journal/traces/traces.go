// Package traces exports replacements of instances as OpenTelemetry traces, over OTLP. Spans are made from the journal
// after a replacement, so that tracing delays nothing.
package traces

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/nstance-kit/nstance/services/internal/server/journal"
)

// closeTimeout is how long Close waits for the export of the last spans.
const closeTimeout = 2 * time.Second

// Exporter exports traces. A nil Exporter exports none. It is safe for concurrent use.
type Exporter struct {
	provider *sdktrace.TracerProvider
	log      *slog.Logger
}

// enabled reports whether the environment asks for traces. Without this check, the SDK would export traces to localhost
// by default.
func enabled(getenv func(string) string) (bool, error) {
	if getenv("OTEL_SDK_DISABLED") == "true" {
		return false, nil
	}
	switch exporter := getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return false, nil
	case "otlp":
	case "":
		if getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
			return false, nil
		}
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER: %q is not supported; use otlp or none", exporter)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := getenv(name); protocol != "" && protocol != "http/protobuf" {
			return false, fmt.Errorf("%s: %q is not supported; use http/protobuf", name, protocol)
		}
	}
	return true, nil
}

// Open returns an Exporter, or nil if the environment does not ask for traces. The OTEL_ variables of the SDK configure
// the Exporter. service is the default of OTEL_SERVICE_NAME. Open makes no request.
func Open(ctx context.Context, getenv func(string) string, service, version string,
	log *slog.Logger) (*Exporter, error) {
	on, err := enabled(getenv)
	if !on {
		return nil, err
	}
	client, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the exporter of traces: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", service),
		attribute.String("service.version", version)), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("describe this server for traces: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces not exported", "error", err) }))
	return &Exporter{log: log, provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(client),
		sdktrace.WithResource(about))}, nil
}

// Export exports one replacement: a span for the whole replacement, and a child span for each stage.
func (e *Exporter) Export(cluster, shard string, r *journal.Replacement) {
	if e == nil {
		return
	}
	tracer := e.provider.Tracer("github.com/nstance-kit/nstance")
	began := cmp.Or(r.Lost, r.Creating)
	ctx, whole := tracer.Start(context.Background(), "replacement", trace.WithTimestamp(began),
		trace.WithAttributes(attribute.String("nstance.cluster", cluster), attribute.String("nstance.shard", shard),
			attribute.String("nstance.tenant", r.Tenant), attribute.String("nstance.group", r.Group),
			attribute.String("nstance.instance", r.Instance), attribute.String("nstance.replaces", r.Replaces),
			attribute.String("nstance.cause", r.Cause)))
	for _, step := range r.Steps() {
		_, span := tracer.Start(ctx, string(step.Stage), trace.WithTimestamp(step.Began))
		span.End(trace.WithTimestamp(step.Ended))
	}
	whole.End(trace.WithTimestamp(r.Healthy))
}

// Close exports the spans that have not been exported yet. It takes at most closeTimeout.
func (e *Exporter) Close() {
	if e == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := e.provider.Shutdown(ctx); err != nil {
		e.log.Warn("traces not exported", "error", err)
	}
}
