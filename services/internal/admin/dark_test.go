package admin

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
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
		"explain group workers": {"the shard has no leader, so nothing is planned or done",
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

// TestDoctorWithoutAServer checks that doctor finds no leader although its lock is fresh, and that it skips what only a
// leader could tell. No line is longer than 80 columns, except for a word that is.
func TestDoctorWithoutAServer(t *testing.T) {
	p, _ := darkShard(t)
	p.lock.LeaseMS, p.lock.RenewMS = 90_000, 30_000
	p.putLock(t)
	stdout, stderr, code := p.run(t, p.args("doctor", "--shard", "dev-1")...)
	verdict, rest, _ := strings.Cut(stdout, "\n")
	if code != exitFailure || !strings.HasPrefix(verdict, "dev-1 has no leader; server-1 wrote the lock last, at ") ||
		!strings.Contains(strings.Join(strings.Fields(stdout), " "), "; a takeover is possible from ") {
		t.Errorf("%d\n%s%s", code, stdout, stderr)
	}
	words := strings.Join(strings.Fields(rest), " ")
	for _, text := range []string{"problem leader: server-1 holds the lock in term 7; a takeover is possible from ",
		"; no server answers as the leader: ", "skipped alerts: no leader answers",
		"skipped groups: no leader answers"} {
		if !strings.Contains(words, text) {
			t.Errorf("there is no %q in\n%s", text, stdout)
		}
	}
	for line := range strings.Lines(stdout) {
		if len([]rune(line)) > 81 && len(strings.Fields(line)) > 2 {
			t.Errorf("too wide: %s", line)
		}
	}
	stdout, _, _ = p.run(t, p.args("doctor", "--shard", "dev-1", "-o", "json")...)
	got := parse[diagnosis](t, stdout)
	if !strings.HasPrefix(got.Verdict, "dev-1 has no leader; server-1 wrote the lock last, at ") ||
		got.Findings[0].Check != "leader" || got.Findings[0].Status != problem {
		t.Errorf("%+v", got)
	}
}

// TestDoctorChecksGroups checks what doctor says about groups.
func TestDoctorChecksGroups(t *testing.T) {
	p := newPatient(t, "file")
	c := fleettest.NewCluster(t, "example")
	group := &nstancev1.GroupStatus{Group: "workers", Size: 2, ActualSize: 2, Healthy: 2, IsStatic: true}
	waiting := &nstancev1.InstanceStatus{InstanceId: firstID, Group: "workers", Health: "unregistered",
		CreatedAt: ago(40 * time.Second)}
	shard := &fleettest.Shard{Status: &nstancev1.GetShardStatusResponse{LeaderId: "server-1", Term: 7, Shard: "dev-1"},
		Groups: []*nstancev1.GroupStatus{group}}
	addr, _ := c.Serve(t, "dev-1", shard)
	p.later = 0 // the certificates of c are of that time
	p.extra = []string{"--servers", "dev-1=" + addr, "--identity-dir",
		c.Identity(t, "default", fleettest.Now, time.Hour)}
	for _, test := range []struct {
		change func()
		status outcome
		result string
	}{
		{func() {}, ok, "2 of 2 healthy"},
		{func() { shard.Instances = append(shard.Instances, waiting) }, ok,
			"2 of 2 healthy; 1 instance not registered, the oldest for 40s"},
		{func() { waiting.CreatedAt = ago(4 * time.Minute) }, problem,
			"2 of 2 healthy; 1 instance not registered, the oldest for 4m0s"},
		{func() { shard.Instances, group.Paused = nil, true }, ok, "2 of 2 healthy; its rollout is paused"},
		{func() { group.Healthy, group.ActualSize, group.BlockedReason = 1, 1, "no capacity" }, problem,
			"1 of 2 healthy, 1 exist; no capacity; its rollout is paused"},
	} {
		shard.Do(test.change)
		findings, _ := p.examine(t)
		i := slices.IndexFunc(findings, func(f finding) bool { return f.Check == "group workers" })
		if i < 0 || findings[i].Status != test.status || findings[i].Result != test.result ||
			(findings[i].Next != "") != (test.status == problem) {
			t.Errorf("want %s, %q in %+v", test.status, test.result, findings)
		}
	}
}
