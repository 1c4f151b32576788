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
	gone := next(d, record.Deleted)
	gone.DeletedAt = t0.Add(2 * time.Hour)
	return map[record.State]record.Instance{record.Reserved: r, record.Created: c, record.Registered: g,
		record.Deleting: d, record.Deleted: gone}
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

func TestGolden(t *testing.T) {
	for state, rec := range life(t) {
		data, err := rec.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := record.DecodeInstance(golden(t, "instance-"+string(state)+".json", data))
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
	gotOp, err := record.DecodeOperator(golden(t, "operator.json", op))
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
	gotLog, err := record.DecodeCertLog(golden(t, "certlog.json", entry))
	if err != nil {
		t.Fatal(err)
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
			_, err := record.DecodeInstance([]byte(c.doc))
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
	fuzz(f, record.DecodeInstance, all[record.Reserved], all[record.Created], all[record.Registered],
		all[record.Deleting], all[record.Deleted])
}

func FuzzOperator(f *testing.F) { fuzz(f, record.DecodeOperator, operator(f)) }

func FuzzCertLog(f *testing.F) { fuzz(f, record.DecodeCertLog, certlog(f)) }
