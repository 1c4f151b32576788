package ident_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

const (
	vectorID      = "acc06bgm7733st2576nx5jht4ecjw"
	vectorStorage = "01970a1c-e31e-7422-9cd5-e9651d11cc97-acc"
)

func TestVector(t *testing.T) {
	id, err := ident.ParseID(vectorID)
	if err != nil {
		t.Fatal(err)
	}
	if got := id.String(); got != vectorID {
		t.Errorf("String() = %s, want %s", got, vectorID)
	}
	if got := id.Storage(); got != vectorStorage {
		t.Errorf("Storage() = %s, want %s", got, vectorStorage)
	}
	if got := id.Prefix(); got != "acc" {
		t.Errorf("Prefix() = %s", got)
	}
	if got, want := id.Time(), time.UnixMilli(0x01970a1ce31e).UTC(); !got.Equal(want) {
		t.Errorf("Time() = %s, want %s", got, want)
	}
	stored, err := ident.ParseStorageID(vectorStorage)
	if err != nil || stored != id {
		t.Errorf("ParseStorageID = %v, %v, want %v", stored, err, id)
	}
}

func TestParseIDRefuses(t *testing.T) {
	for name, s := range map[string]string{
		"empty":             "",
		"short":             vectorID[:28],
		"long":              vectorID + "0",
		"upper case":        strings.ToUpper(vectorID),
		"upper case prefix": "ACC" + vectorID[3:],
		"upper case body":   "acc" + strings.ToUpper(vectorID[3:]),
		"digit in prefix":   "a1c" + vectorID[3:],
		"letter i":          vectorID[:10] + "i" + vectorID[11:],
		"letter l":          vectorID[:10] + "l" + vectorID[11:],
		"letter o":          vectorID[:10] + "o" + vectorID[11:],
		"letter u":          vectorID[:10] + "u" + vectorID[11:],
		"padding bit":       vectorID[:28] + "x",
		"padding bits":      vectorID[:28] + "z",
		"version 4":         vectorID[:13] + "2" + vectorID[14:],
		"newline inside":    vectorID[:27] + "\n" + vectorID[28:],
		"newline at end":    vectorID[:28] + "\n",
		"base32 padding":    vectorID[:28] + "=",
		"space":             " " + vectorID[1:],
		"variant":           vectorID[:15] + "4" + vectorID[16:],
		"all zero body":     "acc" + strings.Repeat("0", 26),
		"not ascii":         "accé" + vectorID[5:],
		"storage form":      vectorStorage,
	} {
		if id, err := ident.ParseID(s); err == nil {
			t.Errorf("%s: ParseID(%q) = %v, want an error", name, s, id)
		} else if !id.IsZero() {
			t.Errorf("%s: ParseID(%q) returned %v beside its error", name, s, id)
		}
	}
}

func TestParseStorageIDRefuses(t *testing.T) {
	for name, s := range map[string]string{
		"empty":        "",
		"no prefix":    vectorStorage[:36],
		"upper case":   strings.ToUpper(vectorStorage[:36]) + "-acc",
		"braces":       "{" + vectorStorage[:35] + "-acc",
		"version 4":    "01970a1c-e31e-4422-9cd5-e9651d11cc97-acc",
		"variant":      "01970a1c-e31e-7422-1cd5-e9651d11cc97-acc",
		"prefix":       vectorStorage[:37] + "ab1",
		"no dash":      vectorStorage[:36] + "_acc",
		"moved dashes": "01970a1ce-31e-7422-9cd5-e9651d11cc97-acc",
		"written form": vectorID,
	} {
		if id, err := ident.ParseStorageID(s); err == nil {
			t.Errorf("%s: ParseStorageID(%q) = %v, want an error", name, s, id)
		}
	}
}

func TestNewIDSortsByCreation(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var stored []string
	for range 5000 {
		id, err := ident.NewID("knd", now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := id.Time(), now.Truncate(time.Millisecond); !got.Equal(want) {
			t.Fatalf("Time() = %s, want %s", got, want)
		}
		if back, err := ident.ParseID(id.String()); err != nil || back != id {
			t.Fatalf("ParseID(%s) = %v, %v", id, back, err)
		}
		if back, err := ident.ParseStorageID(id.Storage()); err != nil || back != id {
			t.Fatalf("ParseStorageID(%s) = %v, %v", id.Storage(), back, err)
		}
		stored = append(stored, id.Storage())
		now = now.Add(250 * time.Nanosecond)
	}
	if !slices.IsSorted(stored) {
		t.Error("IDs made one after the other do not sort in that order")
	}
}

func TestNewIDRefuses(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for name, make := range map[string]func() (ident.ID, error){
		"prefix":       func() (ident.ID, error) { return ident.NewID("Knd", now, rand.Reader) },
		"before 1970":  func() (ident.ID, error) { return ident.NewID("knd", time.Unix(-1, 0), rand.Reader) },
		"far future":   func() (ident.ID, error) { return ident.NewID("knd", time.UnixMilli(1<<48), rand.Reader) },
		"short random": func() (ident.ID, error) { return ident.NewID("knd", now, bytes.NewReader(make7())) },
	} {
		if id, err := make(); err == nil || !id.IsZero() {
			t.Errorf("%s: NewID = %v, %v, want an error", name, id, err)
		}
	}
	broken := errors.New("broken")
	if _, err := ident.NewID("knd", now, iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("NewID with a broken reader: %v", err)
	}
}

func make7() []byte { return []byte{1, 2, 3, 4, 5, 6, 7} }

func TestIDsDiffer(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	seen := map[ident.ID]bool{}
	for range 1000 {
		id, err := ident.NewID("knd", now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if seen[id] {
			t.Fatalf("%s was made twice", id)
		}
		seen[id] = true
	}
}

func TestText(t *testing.T) {
	type document struct {
		ID    ident.ID            `json:"id"`
		Other ident.ID            `json:"other,omitzero"`
		ByID  map[ident.ID]string `json:"by_id"`
	}
	id, err := ident.ParseID(vectorID)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"id":"` + vectorID + `","by_id":{"` + vectorID + `":"x"}}`
	got, err := json.Marshal(document{ID: id, ByID: map[ident.ID]string{id: "x"}})
	if err != nil || string(got) != want {
		t.Fatalf("json = %s, %v, want %s", got, err, want)
	}
	var back document
	if err := json.Unmarshal(got, &back); err != nil || back.ID != id || !back.Other.IsZero() || back.ByID[id] != "x" {
		t.Errorf("read back %+v, %v", back, err)
	}
	if err := json.Unmarshal([]byte(`{"id":"nonsense"}`), &back); err == nil {
		t.Error("nonsense was read as an ID")
	}
	var zero ident.ID
	if zero.String() != "" || zero.Storage() != "" || zero.Prefix() != "" || !zero.Time().IsZero() {
		t.Error("the zero ID is not empty")
	}
	if err := back.ID.UnmarshalText(nil); err != nil || !back.ID.IsZero() {
		t.Errorf("empty text: %v, %v", back.ID, err)
	}
}

func TestCompare(t *testing.T) {
	older, _ := ident.NewID("zzz", time.Unix(1_700_000_000, 0), rand.Reader)
	newer, _ := ident.NewID("aaa", time.Unix(1_700_000_001, 0), rand.Reader)
	if older.Compare(newer) != -1 || newer.Compare(older) != 1 || older.Compare(older) != 0 {
		t.Error("Compare does not order by time")
	}
	if (ident.ID{}).Compare(older) != -1 {
		t.Error("the zero ID does not come first")
	}
}

func TestNames(t *testing.T) {
	for _, s := range []string{"a", "0", "us-west-2a", "a-b-c", "z9", strings.Repeat("a", 30)} {
		for _, validate := range []func(string) error{ident.ValidateName, ident.ValidateClusterName,
			ident.ValidateTenantName} {
			if err := validate(s); err != nil {
				t.Errorf("%q: %v", s, err)
			}
		}
	}
	for _, s := range []string{"", "-", "-a", "a-", "a--b", "A", "a_b", "a.b", "a b", "é", "a/b", "..", "a\n",
		strings.Repeat("a", 33)} {
		if ident.ValidateName(s) == nil || ident.ValidateClusterName(s) == nil || ident.ValidateTenantName(s) == nil {
			t.Errorf("%q was accepted", s)
		}
	}
	long := strings.Repeat("a", 32)
	if err := ident.ValidateName(long); err != nil {
		t.Error(err)
	}
	if ident.ValidateClusterName(long[:31]) == nil || ident.ValidateTenantName(long[:31]) == nil {
		t.Error("a cluster or tenant name of 31 characters was accepted")
	}
	for s, ok := range map[string]bool{"knd": true, "opr": true, "": false, "kn": false, "knds": false, "kN1": false,
		"kné": false} {
		if got := ident.ValidatePrefix(s) == nil; got != ok {
			t.Errorf("ValidatePrefix(%q) ok = %t", s, got)
		}
	}
	if ident.ValidateKind(ident.OperatorPrefix) == nil {
		t.Error("the operators' prefix was accepted as a kind")
	}
	if err := ident.ValidateKind("knd"); err != nil {
		t.Error(err)
	}
}

func TestValidateHostname(t *testing.T) {
	for name, ok := range map[string]bool{"": true, "a": true, "z": true, "A": true, "Z": true, "0": true, "9": true,
		"a-b_c": true, "web-1.example.com": true, strings.Repeat("a", 63): true, strings.Repeat("a", 64): false,
		strings.Repeat("a.", 126) + "a": true, strings.Repeat("a.", 126) + "aa": false, ".": false, ".a": false,
		"a.": false, "a..b": false, "a b": false, "a/b": false, "a:b": false, "a@b": false, "a[b": false, "a`b": false,
		"a{b": false, "é": false, "a\n": false} {
		if err := ident.ValidateHostname(name); (err == nil) != ok {
			t.Errorf("%q: %v, want valid %t", name, err, ok)
		}
	}
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{"", vectorID, vectorStorage, vectorID[:28] + "z", strings.ToUpper(vectorID),
		vectorID[:27] + "\n0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := ident.ParseID(s); err == nil {
			if id.String() != s || id.IsZero() {
				t.Errorf("%q parses, but is written %q", s, id)
			}
			if back, err := ident.ParseStorageID(id.Storage()); err != nil || back != id {
				t.Errorf("%q: storage form %q reads as %v, %v", s, id.Storage(), back, err)
			}
		}
		if id, err := ident.ParseStorageID(s); err == nil {
			if id.Storage() != s || id.IsZero() {
				t.Errorf("%q parses, but is stored as %q", s, id.Storage())
			}
			if back, err := ident.ParseID(id.String()); err != nil || back != id {
				t.Errorf("%q: written form %q reads as %v, %v", s, id, back, err)
			}
		}
	})
}

func FuzzValidateName(f *testing.F) {
	for _, s := range []string{"", "a", "a--b", "-", "us-west-2a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if ident.ValidateName(s) != nil {
			return
		}
		if len(s) == 0 || len(s) > 32 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" ||
			strings.Contains(s, "--") || strings.HasPrefix(s, "-") || strings.HasSuffix(s, "-") {
			t.Errorf("%q was accepted", s)
		}
	})
}

func FuzzValidateHostname(f *testing.F) {
	for _, name := range []string{"", "a", "a.b", "A_b-1", ".", "a..b", "a b", "é", strings.Repeat("a", 64)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if ident.ValidateHostname(name) != nil {
			return
		}
		if strings.ContainsAny(name, " \t\r\n/\\\"'%{}") || len(name) > 253 {
			t.Errorf("%q is taken", name)
		}
		if _, err := netip.ParseAddr(name); err == nil && strings.Contains(name, ":") {
			t.Errorf("%q is an IPv6 address", name)
		}
	})
}

func TestIsDNSName(t *testing.T) {
	for name, want := range map[string]bool{"a": true, "z.A.Z.0.9": true, "*.example.com": true, "_srv.a-b": true,
		strings.Repeat("a", 63): true, strings.Repeat("a", 64): false, strings.Repeat("a.", 126) + "a": true,
		strings.Repeat("a.", 126) + "aa": false, "": false, "*": false, "a.*": false, "-a": false, "a-": false,
		"a..b": false, "a.": false, "a b": false, "a/b": false, "a:b": false, "a`b": false, "a{b": false, "a@b": false,
		"a[b": false, "é": false} {
		if ident.IsDNSName(name) != want {
			t.Errorf("%q is a name: %t, want %t", name, !want, want)
		}
	}
}
