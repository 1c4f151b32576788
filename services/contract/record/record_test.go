package record_test

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
)

var update = flag.Bool("update", false, "write the golden documents again")

// golden compares got with a stored document that must stay readable for ever.
func golden(t *testing.T, name string, got []byte) []byte {
	t.Helper()
	path := filepath.Join("..", "testdata", "v1", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-golden +now):\n%s", name, diff)
	}
	return want
}

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)

func mustID(t testing.TB, s string) ident.ID {
	t.Helper()
	id, err := ident.ParseID(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

const (
	instanceID = "acc06bgm7733st2576nx5jht4ecjw"
	operatorID = "opr06bgm7733st2576nx5jht4ecjw"
)

func reserved(t testing.TB) record.Instance {
	return record.Instance{
		Schema: record.InstanceSchema, ID: mustID(t, instanceID), State: record.Reserved, Revision: 1, Term: 3,
		ReservedTerm: 3,
		Writer:       "f00d", Cluster: "example", Shard: "us-west-2a", Tenant: "prod", Kind: "acc", CreatedAt: t0,
	}
}

// life returns one record for each state.
func life(t testing.TB) map[record.State]record.Instance {
	t.Helper()
	next := func(i record.Instance, to record.State) record.Instance {
		n, err := i.Next(to, i.Term+1, "beef")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	r := reserved(t)
	c := next(r, record.Created)
	c.Group, c.Template, c.ProviderID, c.Image, c.InstanceType, c.SubnetID = "workers", "worker", "i-0123456789abcdef0",
		"ami-1", "t4g.medium", "subnet-a"
	c.InfraHash, c.LaunchedAt, c.IPv4, c.IPv6, c.Hostname = "9f86d081", t0.Add(time.Second), "10.0.0.7", "2001:db8::7",
		"node-7 <a&b>"
	c.Vars, c.OnDemand = map[string]string{"Zone": "a", "zone": "b"}, true
	g := next(c, record.Registered)
	g.RegisteredAt, g.PublicKey, g.NonceID = t0.Add(time.Minute), bytes.Repeat([]byte{7}, 32), "6a74690000000000"
	g.Certificate = &record.CertificateRef{Serial: "000102030405060708090a0b0c0d0e0f",
		NotAfter: t0.Add(7 * 24 * time.Hour)}
	d := next(g, record.Deleting)
	d.DeleteReason, d.DeletingAt, d.DeleteDeadline = "scale down", t0.Add(time.Hour), t0.Add(time.Hour+5*time.Minute)
	tombstone := next(d, record.Deleted)
	tombstone.DeletedAt = t0.Add(2 * time.Hour)
	return map[record.State]record.Instance{record.Reserved: r, record.Created: c, record.Registered: g,
		record.Deleting: d, record.Deleted: tombstone}
}

func operator(t testing.TB) record.Operator {
	return record.Operator{
		Schema: record.OperatorSchema, Revision: 2, ID: mustID(t, operatorID), Cluster: "example", Tenant: "prod",
		Writer:    "beef",
		PublicKey: bytes.Repeat([]byte{9}, 32),
		Certificate: record.CertificateRef{Serial: "0f0e0d0c0b0a09080706050403020100",
			NotAfter: t0.Add(30 * 24 * time.Hour)},
		CreatedAt: t0, RemovedAt: t0.Add(time.Hour), NonceExpires: t0.Add(3 * time.Hour),
	}
}

func certlog(t testing.TB) record.CertLog {
	return record.CertLog{
		Schema: record.CertLogSchema, Cluster: "example", Shard: "us-west-2a", Tenant: "prod",
		Instance: mustID(t, instanceID), Term: 4,
		Writer: "beef", IssuedAt: t0, Issued: []record.Issued{
			{Name: "kubelet.server", Kind: record.CertServer, Serial: "000102030405060708090a0b0c0d0e0f",
				NotAfter: t0.Add(time.Hour)},
			{Name: "etcd.client", Kind: record.CertClient, Serial: "100102030405060708090a0b0c0d0e0f",
				NotAfter: t0.Add(time.Hour)},
		},
	}
}

func agentKey(t testing.TB) record.AgentKey {
	return record.AgentKey{Schema: record.AgentKeySchema, Cluster: "example", Shard: "us-west-2a", Tenant: "prod",
		Instance: mustID(t, instanceID)}
}

func TestGolden(t *testing.T) {
	for state, rec := range life(t) {
		data, err := rec.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := record.Decode[record.Instance](golden(t, "instance-"+string(state)+".json", data))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(rec, got, cmp.Comparer(func(a, b ident.ID) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", state, diff)
		}
	}
	op, err := operator(t).Encode()
	if err != nil {
		t.Fatal(err)
	}
	gotOp, err := record.Decode[record.Operator](golden(t, "operator.json", op))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(operator(t), gotOp, cmp.Comparer(func(a, b ident.ID) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	entry, err := certlog(t).Encode()
	if err != nil {
		t.Fatal(err)
	}
	gotLog, err := record.Decode[record.CertLog](golden(t, "certlog.json", entry))
	if err != nil {
		t.Fatal(err)
	}
	key, err := agentKey(t).Encode()
	if err != nil {
		t.Fatal(err)
	}
	gotKey, err := record.Decode[record.AgentKey](golden(t, "agentkey.json", key))
	if err != nil || gotKey != agentKey(t) {
		t.Errorf("%+v, %v", gotKey, err)
	}
	if diff := cmp.Diff(certlog(t), gotLog, cmp.Comparer(func(a, b ident.ID) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestEncodeIsInUTC(t *testing.T) {
	rec := life(t)[record.Deleted]
	want, err := rec.Encode()
	if err != nil {
		t.Fatal(err)
	}
	zone := time.FixedZone("x", 3600)
	rec.CreatedAt, rec.Certificate.NotAfter, rec.DeletedAt = rec.CreatedAt.In(zone), rec.Certificate.NotAfter.In(zone),
		rec.DeletedAt.In(zone)
	got, err := rec.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
	if rec.Certificate.NotAfter.Location() != zone {
		t.Error("Encode changed its receiver")
	}
}

// TestTimesInOtherZones encodes documents with times in another zone, as time.Now returns them. The bytes must be those
// of the same times in UTC.
func TestTimesInOtherZones(t *testing.T) {
	local := t0.In(time.FixedZone("x", 3600))
	same := func(name string, in, want interface{ Encode() ([]byte, error) }) {
		t.Helper()
		wantBytes, err := want.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := in.Encode(); err != nil || !bytes.Equal(got, wantBytes) {
			t.Errorf("%s: %s, %v, want %s", name, got, err, wantBytes)
		}
	}
	op, opLocal := operator(t), operator(t)
	op.CreatedAt, op.RemovedAt, op.NonceExpires, op.Certificate.NotAfter = t0, t0, t0, t0
	opLocal.CreatedAt, opLocal.RemovedAt, opLocal.NonceExpires = local, local, local
	opLocal.Certificate.NotAfter = local
	same("operator", opLocal, op)
	log, logLocal := certlog(t), certlog(t)
	log.IssuedAt, log.Issued[0].NotAfter, log.Issued[1].NotAfter = t0, t0, t0
	logLocal.IssuedAt, logLocal.Issued[0].NotAfter, logLocal.Issued[1].NotAfter = local, local, local
	same("certificate log", logLocal, log)
	event, eventLocal := clusterEvent(), clusterEvent()
	event.At, eventLocal.At = t0, local
	same("cluster event", eventLocal, event)
	report, reportLocal := serverReport(), serverReport()
	report.ReportedAt, reportLocal.ReportedAt = t0, local
	same("server report", reportLocal, report)
	same("home", record.Home{Schema: record.HomeSchema, RestoredAt: local, SnapshotAt: local},
		record.Home{Schema: record.HomeSchema, RestoredAt: t0, SnapshotAt: t0})
}

func clusterEvent() record.ClusterEvent {
	return record.ClusterEvent{Schema: record.ClusterEventSchema, At: t0, Kind: "secret_set", Actor: "alice at desk",
		Subject: "db.password"}
}

func serverReport() record.ServerReport {
	return record.ServerReport{Schema: record.ServerReportSchema, Generation: "0123456789ab", Machine: "i-1",
		Problem: "503 Service Unavailable", ReportedAt: t0}
}

// refused makes one change to a valid document at a time, and checks that it cannot be written. The name of the change
// begins the error's text about it; a name may have a slash and more words.
func refused[T interface{ Encode() ([]byte, error) }](t *testing.T, valid func() T, changes map[string]func(*T)) {
	t.Helper()
	if _, err := valid().Encode(); err != nil {
		t.Fatal(err)
	}
	for name, change := range changes {
		document := valid()
		change(&document)
		about, _, _ := strings.Cut(name, "/")
		if data, err := document.Encode(); err == nil || !strings.Contains(err.Error(), about+": ") {
			t.Errorf("%T with a change of %s: %s, %v", document, name, data, err)
		}
	}
}

// TestEveryFieldIsChecked changes each field of each document to a value that no program writes.
func TestEveryFieldIsChecked(t *testing.T) {
	long, old := strings.Repeat("x", 1025), time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC)
	refused(t, applied, map[string]func(*record.Applied){
		"schema":        func(a *record.Applied) { a.Schema = 2 },
		"revision":      func(a *record.Applied) { a.Revision = 0 },
		"term":          func(a *record.Applied) { a.Term = 0 },
		"source":        func(a *record.Applied) { a.Source = "" },
		"source/long":   func(a *record.Applied) { a.Source = long },
		"trust/short":   func(a *record.Applied) { a.Trust = "0" },
		"trust/not hex": func(a *record.Applied) { a.Trust = "000000000000000g" },
	})
	refused(t, func() record.CertLog { return certlog(t) }, map[string]func(*record.CertLog){
		"schema":              func(l *record.CertLog) { l.Schema = 2 },
		"cluster":             func(l *record.CertLog) { l.Cluster = "" },
		"shard":               func(l *record.CertLog) { l.Shard = "../x" },
		"tenant":              func(l *record.CertLog) { l.Tenant = "A" },
		"term":                func(l *record.CertLog) { l.Term = 0 },
		"writer":              func(l *record.CertLog) { l.Writer = "" },
		"issued_at":           func(l *record.CertLog) { l.IssuedAt = time.Time{} },
		"issued[1].name":      func(l *record.CertLog) { l.Issued[1].Name = "" },
		"issued[0].serial":    func(l *record.CertLog) { l.Issued[0].Serial = "00" },
		"issued[1].serial/G":  func(l *record.CertLog) { l.Issued[1].Serial = strings.Repeat("G", 32) },
		"issued[1].not_after": func(l *record.CertLog) { l.Issued[1].NotAfter = time.Time{} },
	})
	refused(t, clusterEvent, map[string]func(*record.ClusterEvent){
		"schema":        func(e *record.ClusterEvent) { e.Schema = 2 },
		"at":            func(e *record.ClusterEvent) { e.At = time.Time{} },
		"kind":          func(e *record.ClusterEvent) { e.Kind = "" },
		"actor":         func(e *record.ClusterEvent) { e.Actor = "" },
		"actor/control": func(e *record.ClusterEvent) { e.Actor = "a\x1bb" },
		"shard":         func(e *record.ClusterEvent) { e.Shard = long },
		"tenant":        func(e *record.ClusterEvent) { e.Tenant = long },
		"subject":       func(e *record.ClusterEvent) { e.Subject = "a\x7f" },
		"message":       func(e *record.ClusterEvent) { e.Message = "\xff" },
	})
	home := record.Bucket{Provider: "s3", Endpoint: "https://store.example.com", Name: "prod", Prefix: "team"}
	refused(t, func() record.Home {
		return record.Home{Schema: record.HomeSchema, Buckets: []record.Bucket{home}}
	}, map[string]func(*record.Home){
		"schema":      func(h *record.Home) { h.Schema = 0 },
		"endpoint":    func(h *record.Home) { h.Buckets[0].Endpoint = long },
		"name":        func(h *record.Home) { h.Buckets[0].Name = long },
		"prefix":      func(h *record.Home) { h.Buckets[0].Prefix = long },
		"restored_at": func(h *record.Home) { h.RestoredAt = old },
		"snapshot_at": func(h *record.Home) { h.SnapshotAt = old },
	})
	refused(t, func() record.Operator { return operator(t) }, map[string]func(*record.Operator){
		"schema":                 func(o *record.Operator) { o.Schema = 2 },
		"revision":               func(o *record.Operator) { o.Revision = 0 },
		"id":                     func(o *record.Operator) { o.ID = ident.ID{} },
		"cluster":                func(o *record.Operator) { o.Cluster = "" },
		"tenant":                 func(o *record.Operator) { o.Tenant = "../x" },
		"writer":                 func(o *record.Operator) { o.Writer = "" },
		"writer/long":            func(o *record.Operator) { o.Writer = long[:129] },
		"name":                   func(o *record.Operator) { o.Name = long[:64] },
		"role":                   func(o *record.Operator) { o.Role = "root" },
		"previous_key/short":     func(o *record.Operator) { o.PreviousKey = []byte{1} },
		"previous_key/same":      func(o *record.Operator) { o.PreviousKey = o.PublicKey },
		"certificate.serial":     func(o *record.Operator) { o.Certificate.Serial = "" },
		"certificate.not_after":  func(o *record.Operator) { o.Certificate.NotAfter = time.Time{} },
		"certificate.trust":      func(o *record.Operator) { o.Certificate.Trust = "x" },
		"created_at":             func(o *record.Operator) { o.CreatedAt = time.Time{} },
		"removed_at":             func(o *record.Operator) { o.RemovedAt = old },
		"nonce_expires":          func(o *record.Operator) { o.NonceExpires = old },
		"nonce_expires/far away": func(o *record.Operator) { o.NonceExpires = old.AddDate(9000, 0, 0) },
	})
	state := func(s record.State) func() record.Instance {
		return func() record.Instance { return life(t)[s] }
	}
	refused(t, state(record.Registered), map[string]func(*record.Instance){
		"schema":           func(i *record.Instance) { i.Schema = 2 },
		"id":               func(i *record.Instance) { i.ID = ident.ID{} },
		"kind":             func(i *record.Instance) { i.Kind = "knd" },
		"revision":         func(i *record.Instance) { i.Revision = 0 },
		"reserved_term":    func(i *record.Instance) { i.ReservedTerm = 0 },
		"writer":           func(i *record.Instance) { i.Writer = "" },
		"cluster":          func(i *record.Instance) { i.Cluster = "" },
		"shard":            func(i *record.Instance) { i.Shard = "" },
		"tenant":           func(i *record.Instance) { i.Tenant = "" },
		"template":         func(i *record.Instance) { i.Template = "A" },
		"image":            func(i *record.Instance) { i.Image = long },
		"hostname":         func(i *record.Instance) { i.Hostname = "a\n" },
		"vars":             func(i *record.Instance) { i.Vars = map[string]string{"a": "\xff"} },
		"vars/name":        func(i *record.Instance) { i.Vars = map[string]string{"\xff": "a"} },
		"ipv4":             func(i *record.Instance) { i.IPv4 = "2001:db8::7" },
		"ipv6":             func(i *record.Instance) { i.IPv6 = "fe80::1%eth0" },
		"created_at":       func(i *record.Instance) { i.CreatedAt = time.Time{} },
		"launched_at":      func(i *record.Instance) { i.LaunchedAt = old },
		"registered_at":    func(i *record.Instance) { i.RegisteredAt = old },
		"public_key":       func(i *record.Instance) { i.PublicKey = i.PublicKey[1:] },
		"previous_key":     func(i *record.Instance) { i.PreviousKey = i.PublicKey },
		"preserved.reason": func(i *record.Instance) { i.Preserved = &record.Preserved{At: t0} },
		"preserved.at":     func(i *record.Instance) { i.Preserved = &record.Preserved{Reason: "silent"} },
		"preserved": func(i *record.Instance) {
			i.OnDemand, i.Preserved = true, &record.Preserved{At: t0, Reason: "silent"}
		},
		"nonce_id/no registered_at": func(i *record.Instance) { i.RegisteredAt = time.Time{} },
		"nonce_id/no certificate":   func(i *record.Instance) { i.Certificate = nil },
		"nonce_id/none":             func(i *record.Instance) { i.NonceID = "" },
		"delete_deadline/reason":    func(i *record.Instance) { i.DeleteReason = "x" },
		"delete_deadline/begin":     func(i *record.Instance) { i.DeletingAt = t0 },
		"delete_deadline/end":       func(i *record.Instance) { i.DeleteDeadline = t0 },
		"deleted_at":                func(i *record.Instance) { i.DeletedAt = t0 },
	})
	refused(t, state(record.Reserved), map[string]func(*record.Instance){
		"provider_id":     func(i *record.Instance) { i.ProviderID = "i-1" },
		"delete_deadline": func(i *record.Instance) { i.DeleteReason = "x" },
	})
	refused(t, state(record.Created), map[string]func(*record.Instance){
		"group":           func(i *record.Instance) { i.Group = "" },
		"provider_id":     func(i *record.Instance) { i.ProviderID = "" },
		"delete_deadline": func(i *record.Instance) { i.DeleteReason = "x" },
	})
	refused(t, state(record.Deleting), map[string]func(*record.Instance){
		"delete_reason":         func(i *record.Instance) { i.DeleteReason = "" },
		"delete_deadline/begin": func(i *record.Instance) { i.DeletingAt = time.Time{} },
		"delete_deadline/none":  func(i *record.Instance) { i.DeleteDeadline = time.Time{} },
		"deleted_at":            func(i *record.Instance) { i.DeletedAt = t0 },
	})
	refused(t, state(record.Deleted), map[string]func(*record.Instance){
		"deleted_at": func(i *record.Instance) { i.DeletedAt = time.Time{} },
	})
}

func TestCanMove(t *testing.T) {
	states := []record.State{record.Reserved, record.Created, record.Registered, record.Deleting, record.Deleted}
	for a, from := range states {
		for b, to := range states {
			if got := record.CanMove(from, to); got != (b > a) {
				t.Errorf("CanMove(%s, %s) = %v", from, to, got)
			}
		}
	}
	if record.CanMove("", record.Created) || record.CanMove(record.Created, "gone") {
		t.Error("unknown states can move")
	}
}

func TestNext(t *testing.T) {
	rec := life(t)[record.Registered]
	if _, err := rec.Next(record.Created, rec.Term, "x"); err == nil {
		t.Error("went back")
	}
	if _, err := rec.Next(record.Deleting, rec.Term-1, "x"); err == nil {
		t.Error("an earlier term went on")
	}
	next, err := rec.Next(record.Deleting, rec.Term, "x")
	if err != nil {
		t.Fatal(err)
	}
	next.Vars["zone"], next.PublicKey[0], next.Certificate.Serial = "changed", 0, ""
	if rec.Vars["zone"] == "changed" || rec.PublicKey[0] == 0 || rec.Certificate.Serial == "" {
		t.Error("the copy shares memory")
	}
}

func TestDecodeRefuses(t *testing.T) {
	data, err := life(t)[record.Registered].Encode()
	if err != nil {
		t.Fatal(err)
	}
	replace := func(old, new string) string {
		out := strings.Replace(string(data), old, new, 1)
		if out == string(data) {
			t.Fatalf("%q is not in %s", old, data)
		}
		return out
	}
	for _, c := range []struct{ name, doc, want string }{
		{"empty", "", "unexpected end"},
		{"null", "null", "no schema"},
		{"no schema", replace(`"schema":1,`, ""), "no schema"},
		{"newer", replace(`"schema":1,`, `"schema":2,"surprise":1,`), "newest known is 1"},
		{"zero schema", replace(`"schema":1,`, `"schema":0,`), "schema version 0"},
		{"unknown", replace(`{`, `{"surprise":1,`), `unknown field "surprise"`},
		{"nested unknown", replace(`"not_after"`, `"before":"","not_after"`), `unknown field "before"`},
		{"case", replace(`"group"`, `"Group"`), "lower case"},
		{"twice", replace(`{`, `{"state":"reserved",`), "twice"},
		{"twice in vars", replace(`"Zone":"a"`, `"zone":"a"`), "twice"},
		{"trailing", string(data) + "{}", "after top-level value"},
		{"bad id", replace(instanceID, "ACC06bgm7733st2576nx5jht4ecjw"), "id"},
		{"operator id", replace(instanceID, operatorID), "kind"},
		{"state", replace(`"registered"`, `"running"`), `"running" is unknown`},
		{"revision", replace(`"revision":3`, `"revision":0`), "revision"},
		{"term", replace(`"term":5`, `"term":2`), "before reserved_term"},
		{"zone", replace("2026-01-02T03:04:05.678Z", "2026-01-02T04:04:05.678+01:00"), "created_at: is not in UTC"},
		{"tenant", replace(`"tenant":"prod"`, `"tenant":"../x"`), "tenant"},
		{"no group", replace(`"group":"workers",`, ""), "group: is empty"},
		{"serial", replace("000102030405060708090a0b0c0d0e0f", "1"), "certificate.serial"},
		{"address", replace("10.0.0.7", "010.0.0.7"), "ipv4"},
		{"control", replace("t4g.medium", `t4g\u0000`), "instance_type"},
		{"no key", replace(`"nonce_id":"6a74690000000000"`, `"nonce_id":""`), "only all together"},
		{"early end", replace(`"nonce_id"`, `"deleted_at":"2026-01-02T03:04:05Z","nonce_id"`), "deleted_at"},
		{"size", string(data) + strings.Repeat(" ", record.MaxSize), "at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := record.Decode[record.Instance]([]byte(c.doc))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if errors.Is(err, record.ErrNewer) != (c.name == "newer") {
				t.Errorf("ErrNewer: %v", err)
			}
		})
	}
}

func TestEncodeRefuses(t *testing.T) {
	all := life(t)
	for name, change := range map[string]func() ([]byte, error){
		"created without provider": func() ([]byte, error) {
			r := all[record.Created]
			r.ProviderID = ""
			return r.Encode()
		},
		"reserved with provider": func() ([]byte, error) {
			r := reserved(t)
			r.ProviderID = "i-1"
			return r.Encode()
		},
		"deleting without reason": func() ([]byte, error) {
			r := all[record.Deleting]
			r.DeleteReason = ""
			return r.Encode()
		},
		"created with key": func() ([]byte, error) {
			r := all[record.Registered]
			r.State = record.Created
			return r.Encode()
		},
		"too large": func() ([]byte, error) {
			r := all[record.Created].Clone()
			r.Vars["x"] = strings.Repeat("x", record.MaxSize)
			return r.Encode()
		},
		"operator with instance id": func() ([]byte, error) {
			o := operator(t)
			o.ID = mustID(t, instanceID)
			return o.Encode()
		},
		"operator with short key": func() ([]byte, error) {
			o := operator(t)
			o.PublicKey = o.PublicKey[1:]
			return o.Encode()
		},
		"empty log": func() ([]byte, error) { l := certlog(t); l.Issued = nil; return l.Encode() },
		"log of an operator": func() ([]byte, error) {
			l := certlog(t)
			l.Instance = mustID(t, operatorID)
			return l.Encode()
		},
		"log of unknown kind": func() ([]byte, error) {
			l := certlog(t)
			l.Issued[0].Kind = "ca"
			return l.Encode()
		},
	} {
		if data, err := change(); err == nil {
			t.Errorf("%s was written: %s", name, data)
		}
	}
}

// fuzz checks that every decoded document, encoded and decoded again, is the same value.
func fuzz[T interface{ Encode() ([]byte, error) }](f *testing.F, decode func([]byte) (T, error), seeds ...T) {
	for _, seed := range seeds {
		data, err := seed.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"schema":99}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := decode(data)
		if err != nil {
			return
		}
		again, err := first.Encode()
		if err != nil {
			t.Fatalf("decoded, but cannot be written: %v", err)
		}
		second, err := decode(again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, second, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b ident.ID) bool {
			return a == b
		})); diff != "" {
			t.Error(diff)
		}
	})
}

func FuzzInstance(f *testing.F) {
	all := life(f)
	fuzz(f, record.Decode[record.Instance], all[record.Reserved], all[record.Created], all[record.Registered],
		all[record.Deleting], all[record.Deleted])
}

func FuzzOperator(f *testing.F) { fuzz(f, record.Decode[record.Operator], operator(f)) }

func FuzzAgentKey(f *testing.F) { fuzz(f, record.Decode[record.AgentKey], agentKey(f)) }

func FuzzCertLog(f *testing.F) { fuzz(f, record.Decode[record.CertLog], certlog(f)) }
