package operatorapi_test

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// TestHostileOperatorRecord plays an attacker who can write to the bucket. The attacker replaces the record of a
// removed operator with a forged one, or with the record from before the removal. In both cases, the operators' port
// must refuse the operator and log the reason.
func TestHostileOperatorRecord(t *testing.T) {
	var logs logBuffer
	w := newLoggedTestShard(t, document(""), slog.New(slog.NewJSONHandler(&logs, nil)))
	key := keys.ClusterOperator("prod", w.id.Storage())
	live, err := w.store.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	w.remove(t)
	rec, _, err := w.state.GetOperator(t.Context(), "prod", w.id)
	if err != nil {
		t.Fatal(err)
	}
	rec.Revision, rec.RemovedAt = rec.Revision+1, time.Time{}
	forged, err := rec.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string][]byte{"forged": forged, "rolled back": live.Body} {
		if _, err := w.store.Put(t.Context(), key, body, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		w.Clock.Advance(5 * time.Minute) // the record is read again
		wants(t, name, list(t, w), codes.PermissionDenied, "was not written by this cluster")
		if logs.count(t, "operator's record was forged or rolled back") == 0 {
			t.Errorf("%s: the refusal is not logged", name)
		}
	}
}

// count returns how often a message was logged, and clears the log.
func (b *logBuffer) count(t testing.TB, message string) (n int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(b.text.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatal(err)
		}
		if entry["msg"] == message {
			n++
		}
	}
	b.text.Reset()
	return n
}
