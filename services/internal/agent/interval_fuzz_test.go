package agent

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// headed is a stream from which the agent receives the given header and then io.EOF.
type headed struct {
	grpc.ClientStreamingClient[nstancev1.ReportHealthRequest, nstancev1.ReportHealthResponse]
	header metadata.MD
}

func (h headed) Header() (metadata.MD, error) { return h.header, nil }
func (h headed) RecvMsg(any) error            { return io.EOF }

// FuzzInterval checks that no value of the interval header makes the agent report continuously, or stop reporting.
func FuzzInterval(f *testing.F) {
	for _, text := range []string{"1m0s", "30s", "", "0", "-5s", "1ns", "9999h", "1e3s", "30", "+1.5m",
		"9223372036854775807ns", "1m\x00"} {
		f.Add(text, "")
	}
	f.Add("nonsense", "1s")
	f.Fuzz(func(t *testing.T, text, second string) {
		intervalOf := func(values ...string) time.Duration {
			t.Helper()
			intervals, answer := make(chan time.Duration, 1), make(chan error, 1)
			client := New(Options{Log: slog.New(slog.DiscardHandler)})
			r := &reporter{Client: client, onOldServer: func() {}}
			r.listen(headed{header: metadata.MD{intervalHeader: values}}, intervals, answer)
			if err := <-answer; err != io.EOF { //nolint:errorlint // passed on as it is
				t.Fatal(err)
			}
			return <-intervals
		}
		got := intervalOf(text, second)
		switch want, err := time.ParseDuration(text); {
		case got < minInterval || got > maxInterval:
			t.Errorf("%q: every %s", text, got)
		case err != nil && got != defaultInterval:
			t.Errorf("%q is no duration, and gave %s", text, got)
		case err == nil && want >= minInterval && want <= maxInterval && got != want:
			t.Errorf("%q: every %s", text, got)
		}
		if again := intervalOf(got.String()); again != got {
			t.Errorf("%s is read as %s", got, again)
		}
	})
}
