package record_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/record"
)

func journalEvents() []record.Event {
	at := time.Date(2026, 1, 2, 15, 4, 5, 6, time.UTC)
	return []record.Event{
		{Term: 7, Sequence: 1, At: at, Kind: record.EventLeaderStarted, Actor: "leader"},
		{Term: 7, Sequence: 2, At: at, Kind: record.EventInstanceCreating, Tenant: "prod", Group: "web",
			Instance: "knd1",
			Replaces: "knd0", Cause: "gone", Message: "it is <lost> & gone"},
	}
}

// TestEvents checks that decoding returns the encoded events, and that it refuses invalid lines.
func TestEvents(t *testing.T) {
	body, err := record.EncodeEvents(journalEvents())
	if err != nil {
		t.Fatal(err)
	}
	have, err := record.DecodeEvents(body)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(journalEvents(), have); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	if _, err := record.DecodeEvents([]byte(strings.ReplaceAll(string(body), `"actor"`, `"future"`))); err != nil {
		t.Errorf("a field of a newer server: %v", err)
	}
	for _, wrong := range []string{"{", `{"term":1,"sequence":1,"kind":"x"}`,
		`{"term":1,"sequence":0,"at":"2026-01-02T15:04:05Z","kind":"x"}`,
		`{"term":0,"sequence":1,"at":"2026-01-02T15:04:05Z","kind":"x"}`,
		`{"term":1,"sequence":1,"at":"2026-01-02T15:04:05Z"}`, `{"message":"` + strings.Repeat("x", 40_000) + `"}`,
		strings.Repeat(`{"term":1,"sequence":1,"at":"2026-01-02T15:04:05Z","kind":"x"}`+"\n", record.MaxEvents+1)} {
		if events, err := record.DecodeEvents([]byte(wrong)); err == nil {
			t.Errorf("%.60s is accepted as %d events", wrong, len(events))
		}
	}
}

// TestLongMessage checks that a message that is too long is cut, so that the event can be read.
func TestLongMessage(t *testing.T) {
	events := journalEvents()[:1]
	events[0].Message = strings.Repeat("\x01é", 50_000)
	body, err := record.EncodeEvents(events)
	if err != nil {
		t.Fatal(err)
	}
	have, err := record.DecodeEvents(body)
	if err != nil || !strings.HasSuffix(have[0].Message, "…") || len(have[0].Message) > 5000 {
		t.Errorf("a message of %d bytes: %v, want about 4096 and an ellipsis", len(have[0].Message), err)
	}
}

// FuzzEvents checks that DecodeEvents never panics, and that events which it accepts can be encoded and decoded again.
func FuzzEvents(f *testing.F) {
	body, err := record.EncodeEvents(journalEvents())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Fuzz(func(t *testing.T, data []byte) {
		events, err := record.DecodeEvents(data)
		if err != nil {
			return
		}
		again, err := record.EncodeEvents(events)
		if err != nil {
			t.Skip() // a year that JSON cannot hold
		}
		if read, err := record.DecodeEvents(again); err != nil || len(read) != len(events) {
			t.Errorf("written again: %d events, %v, want %d", len(read), err, len(events))
		}
	})
}
