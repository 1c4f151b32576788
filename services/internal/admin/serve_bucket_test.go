package admin

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/serve/web"
)

// page returns the bucket of the shard, opened for the web page. The page's clock is ahead of the real time by the
// duration `after`.
func (p *patient) page(t *testing.T, after time.Duration) web.Bucket {
	t.Helper()
	a := &app{Environment: Environment{Now: func() time.Time { return time.Now().Add(after) }}}
	b := bucketFlags{timeout: time.Minute}
	b.location = p.location
	bucket, err := a.openPageBucket(t.Context(), &b)
	if err != nil {
		t.Fatal(err)
	}
	return bucket
}

// TestPageLock checks what the page says about a shard without a leader, for locks of different ages.
func TestPageLock(t *testing.T) {
	p := newPatient(t, "file")
	for _, test := range []struct {
		after       time.Duration
		released    bool
		waits, next string
	}{
		{0, false, "the lease of server-1 has not ended", ""},
		{30 * time.Second, false, "the lease of server-1 has ended: another server takes over now", "start a server"},
		{time.Hour, false, "the lock is stale: server-1 renewed it 1h0m", "read the servers' logs"},
		{0, true, "server-1 has released the lock, and no server has taken it", "read the servers' logs"},
	} {
		p.lock.Released = test.released
		p.putLock(t)
		got := p.page(t, test.after).Lock(t.Context(), "dev-1")
		if got.Holder != "server-1" || got.Heir != "server-2" || got.Term != 7 || got.Lease != 10*time.Second ||
			time.Since(got.RenewedAt).Abs() > time.Hour || !strings.HasPrefix(got.Waits, test.waits) ||
			!strings.HasPrefix(got.Next, test.next) || (got.Next == "") != (test.next == "") {
			t.Errorf("%+v\nwant %+v", got, test)
		}
	}
	p.putEnd(t, record.Event{Kind: record.EventLeaderEnded, Actor: "leader", Message: "the bucket refused the lock"})
	if got := p.page(t, 0).Lock(t.Context(), "dev-1"); !strings.Contains(got.Waits, "; the leadership ended at ") ||
		!strings.Contains(got.Waits, ": the bucket refused the lock") {
		t.Errorf("%+v", got)
	}
	body, err := record.ServerReport{Schema: record.ServerReportSchema, Generation: "g", Machine: "i-1",
		ReportedAt: time.Now(), Problem: "the key cannot be opened"}.Encode()
	p.put(t, keys.ServerReport("dev-1"), body, err)
	if got := p.page(t, 0).Lock(t.Context(), "dev-1"); !strings.Contains(got.Waits, "; the newest server: i-1") ||
		!strings.Contains(got.Waits, "the key cannot be opened") {
		t.Errorf("%+v", got)
	}
	if got := p.page(t, 0).Lock(t.Context(), "other"); got.Holder != "" || got.Waits != "no server has led the shard" {
		t.Errorf("%+v", got)
	}
	p.put(t, keys.Leader("dev-1"), []byte("{}"), nil)
	if got := p.page(t, 0).Lock(t.Context(), "dev-1"); got.Holder != "" || !strings.Contains(got.Waits, "lock") {
		t.Errorf("%+v", got)
	}
}

// TestPageCompare checks that the page shows the effects of the newest configuration, as "config plan" does.
func TestPageCompare(t *testing.T) {
	p := newPatient(t, "file")
	page := p.page(t, 0)
	if _, err := page.Compare(t.Context(), "dev-1"); err == nil || !strings.Contains(err.Error(), "applied") {
		t.Error("without an applied configuration:", err)
	}
	text, err := os.ReadFile(exampleConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	content, err := record.Applied{Schema: record.AppliedSchema, Revision: 1, Term: 7, Source: "e1",
		Body: text}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	p.put(t, keys.Applied("dev-1"), content, nil)
	if got, err := page.Compare(t.Context(), "dev-1"); err != nil || !got.Same || len(got.Diff) > 0 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, change := range []struct {
		body           string
		invalid, rolls bool
	}{
		{strings.Replace(string(text), `"arch": "amd64"`, `"arch": "arm64"`, 1), false, true},
		{strings.Repeat("{\n", 2*maxDiff), true, false},
	} {
		p.put(t, keys.Config("dev-1"), []byte(change.body), nil)
		got, err := page.Compare(t.Context(), "dev-1")
		if err != nil || got.Same || got.Invalid != change.invalid || (len(got.Rolling) > 0) != change.rolls ||
			(len(got.Effects) > 0) != change.rolls || len(got.Diff) == 0 || len(got.Diff) > maxDiff ||
			(got.More > 0) != change.invalid {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// TestPageWarnsOfOverride checks that the page shows a changed size that has no effect, also if it showed the same
// configurations before an operator set a size.
func TestPageWarnsOfOverride(t *testing.T) {
	p := newPatient(t, "file")
	page := p.page(t, 0)
	text, err := os.ReadFile(exampleConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	content, err := record.Applied{Schema: record.AppliedSchema, Revision: 1, Term: 7, Source: "e1",
		Body: text}.Encode()
	p.put(t, keys.Applied("dev-1"), content, err)
	p.put(t, keys.Config("dev-1"), []byte(strings.Replace(string(text), `"size": 2`, `"size": 3`, 1)), nil)
	for _, overridden := range []bool{false, true} {
		if overridden {
			overrideSize(t, p.state(t, encryptionKey), 5)
		}
		got, err := page.Compare(t.Context(), "dev-1")
		if err != nil || strings.Contains(strings.Join(got.Effects, "\n"), noEffect) != overridden {
			t.Errorf("overridden %v: %q, %v", overridden, got.Effects, err)
		}
	}
}
