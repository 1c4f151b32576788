package admin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

// darkShard returns a shard whose servers are dead. The bucket has an instance that was healthy, one that was lost, one
// that is being deleted, and an alert.
func darkShard(t *testing.T) (p *patient, ids []string) {
	t.Helper()
	p = newPatient(t, "file")
	dir := filepath.Join(t.TempDir(), "identity")
	p.must(t, p.args("cluster", "register-operator", "--output-dir", dir)...)
	p.env = map[string]string{"NSTANCE_ADMIN_SERVERS": "dev-1=" + closedPort(t), "NSTANCE_ADMIN_IDENTITY_DIR": dir,
		"NSTANCE_ENCRYPTION_KEY": encryptionKey}
	state := p.state(t, encryptionKey)
	for n, s := range []record.State{record.Registered, record.Registered, record.Deleting} {
		id, err := ident.NewID("wrk", time.Now(), fleettest.Rand(byte(n)))
		if err != nil {
			t.Fatal(err)
		}
		rec := record.Instance{Schema: record.InstanceSchema, ID: id, State: s, Revision: 1, Term: 7, ReservedTerm: 7,
			Writer: "i", Cluster: "example", Shard: "dev-1", Tenant: "default", Kind: "wrk", Group: "workers",
			Template: "worker", CreatedAt: time.Now().Add(-time.Hour), LaunchedAt: time.Now().Add(-time.Hour),
			ProviderID: "@" + id.String(), RegisteredAt: time.Now().Add(-time.Hour), PublicKey: make([]byte, 32),
			Certificate: &record.CertificateRef{Serial: strings.Repeat("0a", 16), NotAfter: time.Now().Add(time.Hour)},
			NonceID:     "n"}
		if s == record.Deleting {
			rec.DeleteReason, rec.DeletingAt, rec.DeleteDeadline = "scale_down", time.Now(), time.Now()
		}
		if _, err := state.PutInstance(t.Context(), rec, ""); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id.String())
	}
	event := func(kind record.EventKind, instance int, cause, message string) record.Event {
		e := record.Event{Kind: kind, Tenant: "default", Group: "workers", Cause: cause, Message: message}
		if instance >= 0 {
			e.Instance = ids[instance]
		}
		return e
	}
	p.putEnd(t, event(record.EventInstanceHealthy, 0, "", ""), event(record.EventInstanceHealthy, 1, "", ""),
		event(record.EventInstanceLost, 1, "", "stream closed"),
		event(record.EventAlertRaised, -1, "backoff", "no capacity"),
		record.Event{Kind: record.EventInstanceHealthy, Tenant: "other", Group: "secret"})
	return p, ids
}

// TestLastKnown checks what commands show if no server of the shard runs.
func TestLastKnown(t *testing.T) {
	p, ids := darkShard(t)
	for line, want := range map[string][]string{
		"instance list": {ids[0] + "   workers   healthy ", ids[1] + "   workers   silent ",
			ids[2] + "   workers   deleting "},
		"group list":                       {"workers   2      2        ?         static"},
		"group status workers":             {"2 desired, 2 recorded; only a leader knows how many are healthy"},
		"instance describe " + ids[1][10:]: {ids[1], "registered", "silent", "stream closed"},
		"events --kind instance_lost":      {"instance lost   workers   …" + ids[1][24:] + "     stream closed"},
		"explain group workers": {"Blocked", "the shard has no leader, so nothing is planned or done",
			"backoff: no capacity",
			ids[0] + "   registered   healthy"},
		"explain instance " + ids[0]: {ids[0] + "   registered   healthy"},
		"status": {"dev-1   none     -      -        3           1",
			"dev-1: backoff of group workers: no capacity"},
	} {
		stdout, stderr, code := p.run(t, p.args(strings.Fields(line)...)...)
		if code != exitFailure || !strings.Contains(stderr, "dev-1: last known, from the bucket, ") ||
			!strings.Contains(stderr, "connection refused") || strings.Contains(stdout, "secret") {
			t.Errorf("%s: exit code %d\n%s%s", line, code, stdout, stderr)
		}
		for _, text := range want {
			if !strings.Contains(stdout, text) {
				t.Errorf("%s: there is no %q in\n%s", line, text, stdout)
			}
		}
	}
	stdout, stderr, _ := p.run(t, p.args("instance", "list", "-o", "json")...)
	if !strings.Contains(stdout, `"last_known": "20`) || !strings.Contains(stdout, `"code": "unavailable"`) ||
		strings.Contains(stderr, "last known") {
		t.Errorf("%s%s", stdout, stderr)
	}
}

// TestNothingIsKnown checks the errors if neither a server nor the bucket answers, and if no bucket is named.
func TestNothingIsKnown(t *testing.T) {
	p, _ := darkShard(t)
	stdout, stderr, code := p.run(t, "instance", "list")
	if code != exitFailure || stdout != "" || !strings.Contains(stderr,
		"with --storage-bucket, this command shows what is last known") {
		t.Errorf("%d %s%s", code, stdout, stderr)
	}
	stdout, stderr, code = p.run(t, append(p.args("group", "list", "--shard", "dev-1"), "--storage-prefix", "else")...)
	if code != exitFailure || stdout != "" {
		t.Errorf("%d %s%s", code, stdout, stderr)
	}
	stdout, stderr, _ = p.run(t, p.args("group", "status", "wrokers")...)
	if stdout != "" || !strings.Contains(stderr, `group "wrokers": the bucket does not have it`) {
		t.Errorf("%s%s", stdout, stderr)
	}
	if err := os.RemoveAll(p.location.Bucket); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code = p.run(t, p.args("events")...)
	if code != exitFailure || stdout != "" || !strings.Contains(stderr, "no such file or directory") ||
		!strings.Contains(stderr, "connection refused") {
		t.Errorf("%d %s%s", code, stdout, stderr)
	}
}
