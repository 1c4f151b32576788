package peer

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/election"
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
		"hello": hello{from: follower},
		"heartbeat": election.Heartbeat{Leader: leader, Standby: follower, Term: 7, Beat: 1 << 40, Length: time.Second,
			Lock: lock, Token: `"etag"`},
		"promise":  election.Promise{Leader: leader, Standby: follower, Term: 7, Beat: 300, Length: time.Second},
		"farewell": election.Handover{Leader: leader, Standby: follower, Term: 7},
		"taken":    election.TookOver{Leader: leader, Standby: follower, Term: 8},
	}
}

func TestMessagesRoundTrip(t *testing.T) {
	for name, message := range messages() {
		frame, err := encode(message)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := decode(frame)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(message, got, cmp.AllowUnexported(hello{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for n := range frame { // a truncated message is not valid
			if part, err := decode(frame[:n]); err == nil {
				t.Errorf("%s: %d of %d bytes are %+v", name, n, len(frame), part)
			}
		}
		if _, err := decode(append(bytes.Clone(frame), 0)); err == nil || !strings.Contains(err.Error(), "left over") {
			t.Errorf("%s and a byte: %v", name, err)
		}
	}
}

func TestFramesRefused(t *testing.T) {
	promise := func(change func(*election.Promise)) []byte {
		p := messages()["promise"].(election.Promise)
		change(&p)
		frame, err := encode(p)
		if err != nil {
			t.Fatal(err)
		}
		return frame
	}
	heartbeat, err := encode(messages()["heartbeat"])
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		frame []byte
		want  string
	}{
		"empty":           {nil, "0 bytes"},
		"huge":            {make([]byte, maxFrame+1), "bytes"},
		"no kind":         {[]byte{0, 1}, "kind is 0"},
		"tomorrow's kind": {[]byte{kindTaken + 1}, "kind is 6"},
		"nobody":          {promise(func(p *election.Promise) { p.Standby.ID = "" }), "no name"},
		"no incarnation":  {promise(func(p *election.Promise) { p.Leader.Incarnation = "" }), "no name"},
		"long name": {promise(func(p *election.Promise) {
			p.Leader.ID = strings.Repeat("x", maxText+1)
		}), "does not fit"},
		"no length":        {promise(func(p *election.Promise) { p.Length = 0 }), "a promise of"},
		"for ever":         {promise(func(p *election.Promise) { p.Length = maxLength + 1 }), "a promise of"},
		"too large a term": {promise(func(p *election.Promise) { p.Term = maxNumber }), "too large"},
		"longer than need be": {bytes.Replace(promise(func(*election.Promise) {}), []byte{3, 'o', 'n', 'e'},
			[]byte{0x83, 0, 'o', 'n', 'e'}, 1), "not in its shortest encoding"},
		"lock with more":       {bytes.Replace(heartbeat, []byte(`"term"`), []byte(`"mert"`), 1), "mert"},
		"lock in another form": {bytes.Replace(heartbeat, []byte(`"term":7`), []byte(`"term": 7`), 1), "lock"},
		"lock of other letters": {bytes.Replace(heartbeat, []byte(`"schema":1,"leader_id":"one"`),
			[]byte(`"leader_id":"one","schema":1`), 1), "canonical"},
	} {
		if got, err := decode(tc.frame); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %+v, %v, want %q", name, got, err, tc.want)
		}
	}
	if frame, err := encode(election.Heartbeat{Lock: record.Lock{}}); err == nil {
		t.Errorf("a heartbeat without lock is %q", frame)
	}
	if frame, err := encode(3); err == nil {
		t.Errorf("a number is %q", frame)
	}
}

func FuzzDecode(f *testing.F) {
	for _, message := range messages() {
		frame, err := encode(message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(frame)
	}
	f.Add([]byte{kindHello, 1, 'a', 0x80})
	f.Fuzz(func(t *testing.T, frame []byte) {
		message, err := decode(frame)
		if err != nil {
			return
		}
		again, err := encode(message)
		if err != nil || !bytes.Equal(again, frame) {
			t.Fatalf("%x is %+v, which is %x (%v)", frame, message, again, err)
		}
	})
}
