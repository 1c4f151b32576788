package record_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/record"
)

const sampleMarks = "AQIDBAUGBwgBonEK9QA"

func sampleLock() record.Lock {
	return record.Lock{
		Schema:      1,
		LeaderID:    "i-0123456789abcdef0",
		Incarnation: "6f1d2c3b4a596877",
		Addresses: record.LockAddresses{
			Election: "10.0.0.10:8991", Registration: "10.0.0.100:8992", Operator: "10.0.0.100:8993",
			Agent: "10.0.0.100:8994",
		},
		Machine:     "i-0123456789abcdef0",
		Term:        7,
		Revision:    12345,
		LeaseMS:     10_000,
		RenewMS:     5_000,
		Heir:        record.LockHeir{ID: "i-0fedcba9876543210", Incarnation: "7788990011aabbcc"},
		Released:    true,
		AppliedETag: `"d41d8cd98f00b204e9800998ecf8427e"`,
		RenewedAt:   time.Date(2025, 11, 20, 19, 30, 0, 0, time.UTC),
	}
}

func TestLockGolden(t *testing.T) {
	got, err := record.EncodeLock(sampleLock())
	if err != nil {
		t.Fatal(err)
	}
	want := golden(t, "lock.json", got)
	lock, err := record.DecodeLock(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sampleLock(), lock); diff != "" {
		t.Errorf("decoded golden differs (-want +got):\n%s", diff)
	}
}

// TestLockWithMarksGolden checks that a lock with marks has schema version 2, so that older programs refuse it with
// ErrNewer.
func TestLockWithMarksGolden(t *testing.T) {
	lock := sampleLock()
	lock.Marks = sampleMarks
	got, err := record.EncodeLock(lock)
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := record.DecodeLock(golden(t, "lock-2.json", got))
	if err != nil {
		t.Fatal(err)
	}
	lock.Schema = 2
	if diff := cmp.Diff(lock, decoded); diff != "" {
		t.Errorf("decoded golden differs (-want +got):\n%s", diff)
	}
}

func TestLockIsComparableAndVersioned(t *testing.T) {
	a, b := sampleLock(), sampleLock()
	if a != b {
		t.Error("equal locks are not ==")
	}
	b.Revision++
	if a.Version() == b.Version() {
		t.Error("another revision has the same version")
	}
}

func TestLockRefused(t *testing.T) {
	good, err := record.EncodeLock(sampleLock())
	if err != nil {
		t.Fatal(err)
	}
	replace := func(old, new string) string {
		t.Helper()
		if !strings.Contains(string(good), old) {
			t.Fatalf("%q is not in the sample", old)
		}
		return strings.Replace(string(good), old, new, 1)
	}
	for name, tc := range map[string]struct{ doc, want string }{
		"empty":                {"", "decode lock"},
		"null":                 {"null", "no schema"},
		"trailing":             {string(good) + "{}", "decode lock"},
		"unknown field":        {replace(`"term"`, `"colour":1,"term"`), `"colour"`},
		"repeated field":       {replace(`"term":7`, `"term":7,"term":8`), "twice"},
		"term zero":            {replace(`"term":7`, `"term":0`), "term 0"},
		"term negative":        {replace(`"term":7`, `"term":-1`), "decode lock"},
		"term at the end":      {replace(`"term":7`, `"term":18446744073709551615`), "term 18446744073709551615"},
		"revision missing":     {replace(`"revision":12345,`, ``), "revision 0"},
		"no leader":            {replace(`"leader_id":"i-0123456789abcdef0"`, `"leader_id":""`), "no leader_id"},
		"no incarnation":       {replace(`"incarnation":"6f1d2c3b4a596877"`, `"incarnation":""`), "no incarnation"},
		"lease zero":           {replace(`"lease_ms":10000`, `"lease_ms":0`), "lease_ms 0"},
		"lease for ever":       {replace(`"lease_ms":10000`, `"lease_ms":3600001`), "lease_ms 3600001"},
		"renewal too rare":     {replace(`"renew_ms":5000`, `"renew_ms":10000`), "renew_ms 10000"},
		"renewal missing":      {replace(`"renew_ms":5000`, `"renew_ms":0`), "renew_ms 0"},
		"half an heir":         {replace(`"id":"i-0fedcba9876543210"`, `"id":""`), "heir"},
		"heir is holder":       {replace(`7788990011aabbcc`, `6f1d2c3b4a596877`), "heir"},
		"long text":            {replace(`10.0.0.10:8991`, strings.Repeat("x", 513)), "election address: too long"},
		"time is not a time":   {replace(`2025-11-20T19:30:00Z`, `yesterday`), "decode lock"},
		"time out of range":    {replace(`2025-11-20T19:30:00Z`, `9999-12-31T23:59:59-01:00`), "year 10000"},
		"half a mark":          {replace(`"released":true`, `"marks":"AAAA","released":true`), "marks: decode marks"},
		"wrong schema":         {replace(`"schema":1`, `"schema":0`), "schema version 0"},
		"nothing but a string": {`"lock"`, "decode lock"},
	} {
		t.Run(name, func(t *testing.T) {
			lock, err := record.DecodeLock([]byte(tc.doc))
			if err == nil {
				t.Fatalf("accepted: %+v", lock)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q does not mention %q", err, tc.want)
			}
		})
	}
	if _, err := record.DecodeLock([]byte(replace(`"schema":1`, `"schema":3,"fields_of_tomorrow":[]`))); !errors.Is(err,
		record.ErrNewer) {
		t.Errorf("a newer lock: %v, want ErrNewer", err)
	}
}

func TestEncodeLockRefusesUnreadableLocks(t *testing.T) {
	lock := sampleLock()
	lock.AppliedETag = "\xff"
	if doc, err := record.EncodeLock(lock); err == nil {
		t.Errorf("encoded %q", doc)
	}
	lock = sampleLock()
	lock.Term = 0
	if doc, err := record.EncodeLock(lock); err == nil {
		t.Errorf("encoded %q", doc)
	}
}

func FuzzDecodeLock(f *testing.F) {
	good, err := record.EncodeLock(sampleLock())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"schema":1,"leader_id":"a","incarnation":"b","term":1,"revision":1,"lease_ms":2,"renew_ms":1}`))
	f.Add([]byte(`{"schema":2}`))
	f.Add([]byte(`{"schema":1,"heir":{"id":"x"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		lock, err := record.DecodeLock(data)
		if err != nil {
			return
		}
		first, err := record.EncodeLock(lock)
		if err != nil {
			t.Fatalf("decoded, but cannot be encoded: %v", err)
		}
		again, err := record.DecodeLock(first)
		if err != nil {
			t.Fatalf("encoded, but cannot be decoded: %v", err)
		}
		second, err := record.EncodeLock(again)
		if err != nil || string(first) != string(second) {
			t.Fatalf("not stable: %s, then %s, %v", first, second, err)
		}
	})
}
