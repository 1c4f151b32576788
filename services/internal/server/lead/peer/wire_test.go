package peer

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
)

var (
	leader   = election.Peer{ID: "one", Incarnation: "6f1d2c3b4a596877"}
	follower = election.Peer{ID: "two", Incarnation: "7788990011aabbcc"}
	lock     = record.Lock{Schema: 1, LeaderID: "one", Incarnation: "6f1d2c3b4a596877", Term: 7, Revision: 300,
		LeaseMS: 90_000, RenewMS: 30_000,
		Heir: follower, AppliedETag: `"x"`}
)

func messages() map[string]any {
	return map[string]any{
		"hello": hello{follower},
		"heartbeat": election.Heartbeat{Leader: leader, Standby: follower, Term: 7, Beat: 1 << 40, Length: time.Second,
			Lock: lock, Token: `"etag"`},
		"promise":  election.Promise{Leader: leader, Standby: follower, Term: 7, Beat: 300, Length: time.Second},
		"handover": election.Handover{Leader: leader, Standby: follower, Term: 7},
		"restart":  restart{Version: "v2"},
		"refusal":  refusal{Version: "v2", Reason: "no key"},
		"takeover": election.TookOver{Leader: leader, Standby: follower, Term: 8},
	}
}

func encode(t testing.TB, message any) []byte {
	t.Helper()
	frame, err := codec{}.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

func decode(frame []byte) (message any, err error) {
	err = codec{}.Unmarshal(frame, &message)
	return message, err
}

func TestMessagesRoundTrip(t *testing.T) {
	for name, message := range messages() {
		frame := encode(t, message)
		got, err := decode(frame)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(message, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for n := range frame { // a truncated message is not valid
			if part, err := decode(frame[:n]); err == nil {
				t.Errorf("%s: %d of %d bytes are %+v", name, n, len(frame), part)
			}
		}
	}
}

func TestFramesRefused(t *testing.T) {
	heartbeat := func(change func(*election.Heartbeat)) []byte {
		h := messages()["heartbeat"].(election.Heartbeat)
		change(&h)
		return encode(t, h)
	}
	sent := heartbeat(func(*election.Heartbeat) {})
	for name, tc := range map[string]struct {
		frame []byte
		want  string
	}{
		"empty":          {nil, "EOF"},
		"no kind":        {[]byte("{}"), "no known field"},
		"two messages":   {[]byte(`{"promise": {}} {"promise": {}}`), "more than one JSON value"},
		"unknown kind":   {[]byte(`{"promise2": {}}`), "unknown field"},
		"no ID":          {encode(t, hello{election.Peer{Incarnation: "x"}}), "a part of 0 bytes"},
		"no incarnation": {encode(t, hello{election.Peer{ID: "x"}}), "a part of 0 bytes"},
		"long name": {encode(t, hello{election.Peer{ID: strings.Repeat("x", maxName+1), Incarnation: "x"}}),
			"a part of 513 bytes"},
		"no length":  {heartbeat(func(h *election.Heartbeat) { h.Length = 0 }), "a promise of"},
		"for ever":   {heartbeat(func(h *election.Heartbeat) { h.Length = maxLength + 1 }), "a promise of"},
		"no version": {encode(t, restart{}), "a version of the configuration has 0 bytes"},
		"long reason": {encode(t, refusal{"v", strings.Repeat("x", maxRefusal+1)}),
			"reason of a refusal has 4097 bytes"},
		"lock with more": {bytes.Replace(sent, []byte(`"term"`), []byte(`"mert"`), 1), "mert"},
		"lock of no one": {bytes.Replace(sent, []byte(`"leader_id":"one"`), []byte(`"leader_id":""`), 1), "leader_id"},
		"newer lock":     {bytes.Replace(sent, []byte(`"schema":1`), []byte(`"schema":3`), 1), "newer"},
	} {
		if got, err := decode(tc.frame); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %+v, %v, want %q", name, got, err, tc.want)
		}
	}
	for _, message := range []any{election.Heartbeat{Lock: record.Lock{}}, 3} {
		if frame, err := (codec{}).Marshal(message); err == nil {
			t.Errorf("%+v is %q", message, frame)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, message := range messages() {
		f.Add(encode(f, message))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		message, err := decode(frame)
		if err != nil {
			return
		}
		again, err := decode(encode(t, message))
		if err != nil || again != message {
			t.Fatalf("%q is %+v, which is %+v (%v)", frame, message, again, err)
		}
	})
}
