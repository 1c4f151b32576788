package envelope_test

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/envelope"
)

var update = flag.Bool("update", false, "write the golden documents again")

func key(t testing.TB, fill byte) envelope.Key {
	t.Helper()
	k, err := envelope.NewKey(bytes.Repeat([]byte{fill}, envelope.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func seal(t testing.TB, k envelope.Key, cluster, name, text string) []byte {
	t.Helper()
	blob, err := envelope.Seal(k, cluster, name, 7, []byte(text), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return blob
}

func TestGolden(t *testing.T) {
	path := filepath.Join("..", "testdata", "v1", "envelope-2.bin")
	blob, err := envelope.Seal(key(t, 1), "example", "db.password", 7, []byte("correct horse"),
		bytes.NewReader(bytes.Repeat([]byte{2}, 12)))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, blob, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(blob, want) {
		t.Errorf("golden:\n%s\nnow:\n%s", hex.Dump(want), hex.Dump(blob))
	}
	text, _, err := envelope.Open([]envelope.Key{key(t, 9), key(t, 1)}, "example", "db.password", want)
	if err != nil || string(text) != "correct horse" {
		t.Errorf("%q, %v", text, err)
	}
}

// A blob of format 1 does not hold a version of the secret.
func TestFormerFormatOpens(t *testing.T) {
	blob, err := os.ReadFile(filepath.Join("..", "testdata", "v1", "envelope.bin"))
	if err != nil {
		t.Fatal(err)
	}
	text, version, err := envelope.Open([]envelope.Key{key(t, 1)}, "example", "db.password", blob)
	if err != nil || string(text) != "correct horse" || version != 0 || envelope.Version(blob) != 0 {
		t.Errorf("%q, version %d, %v", text, version, err)
	}
	for i := range blob { // a change of any byte must be detected, the format's too
		changed := bytes.Clone(blob)
		changed[i] ^= 3
		if _, _, err := envelope.Open([]envelope.Key{key(t, 1)}, "example", "db.password", changed); err == nil {
			t.Errorf("byte %d may change", i)
		}
	}
	blob = seal(t, key(t, 1), "c", "n", "text")
	if _, version, err := envelope.Open([]envelope.Key{key(t, 1)}, "c", "n", blob); err != nil || version != 7 ||
		envelope.Version(blob) != 7 || envelope.Version(blob[:20]) != 0 {
		t.Errorf("version %d, %v", version, err)
	}
}

func TestSealIsRandomAndOpens(t *testing.T) {
	k := key(t, 1)
	a, b := seal(t, k, "c", "n", ""), seal(t, k, "c", "n", "")
	if bytes.Equal(a, b) {
		t.Error("two seals are equal")
	}
	if id, err := envelope.KeyID(a); err != nil || id != k.ID() {
		t.Errorf("key id %s, %v", id, err)
	}
	if text, _, err := envelope.Open([]envelope.Key{k}, "c", "n", a); err != nil || len(text) != 0 {
		t.Errorf("%q, %v", text, err)
	}
	large := strings.Repeat("x", envelope.MaxPlaintext)
	if text, _, err := envelope.Open([]envelope.Key{k}, "c", "n", seal(t, k, "c", "n", large)); err != nil ||
		string(text) != large {
		t.Error("largest secret:", err)
	}
	if _, err := envelope.Seal(k, "c", "n", 1, []byte(large+"x"), rand.Reader); err == nil {
		t.Error("sealed what is too large")
	}
	if _, err := envelope.Seal(envelope.Key{}, "c", "n", 1, nil, rand.Reader); err == nil {
		t.Error("sealed without a key")
	}
	if _, err := envelope.Seal(k, "c", "n", 1, nil, bytes.NewReader(nil)); err == nil {
		t.Error("sealed without randomness")
	}
}

func TestOpenRefuses(t *testing.T) {
	k := key(t, 1)
	blob := seal(t, k, "cluster", "name", "text")
	newer := bytes.Clone(blob)
	newer[4] = 3
	older := bytes.Clone(blob)
	older[4] = 0
	for _, c := range []struct {
		name          string
		keys          []envelope.Key
		cluster, item string
		blob          []byte
		want          error
	}{
		{"no keys", nil, "cluster", "name", blob, envelope.ErrUnknownKey},
		{"zero key", []envelope.Key{{}}, "cluster", "name", blob, envelope.ErrUnknownKey},
		{"other key", []envelope.Key{key(t, 2)}, "cluster", "name", blob, envelope.ErrUnknownKey},
		{"other name", []envelope.Key{k}, "cluster", "eman", blob, envelope.ErrAuthentication},
		{"other cluster", []envelope.Key{k}, "clusters", "name", blob, envelope.ErrAuthentication},
		{"moved boundary", []envelope.Key{k}, "clustern", "ame", blob, envelope.ErrAuthentication},
		{"empty", []envelope.Key{k}, "cluster", "name", nil, envelope.ErrFormat},
		{"plain text", []envelope.Key{k}, "cluster", "name",
			[]byte("a secret that was never sealed, and is long enough"), envelope.ErrFormat},
		{"cut off", []envelope.Key{k}, "cluster", "name", blob[:40], envelope.ErrFormat},
		{"cut off by one", []envelope.Key{k}, "cluster", "name", blob[:len(blob)-1], envelope.ErrAuthentication},
		{"trailing", []envelope.Key{k}, "cluster", "name", append(bytes.Clone(blob), 0), envelope.ErrAuthentication},
		{"newer", []envelope.Key{k}, "cluster", "name", newer, envelope.ErrNewer},
		{"version zero", []envelope.Key{k}, "cluster", "name", older, envelope.ErrFormat},
		{"too long", []envelope.Key{k}, "cluster", "name", append(bytes.Clone(blob),
			make([]byte, envelope.MaxPlaintext)...), envelope.ErrFormat},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, _, err := envelope.Open(c.keys, c.cluster, c.item, c.blob)
			if !errors.Is(err, c.want) || text != nil {
				t.Errorf("%q, %v, want %v", text, err, c.want)
			}
		})
	}
	_, _, err := envelope.Open([]envelope.Key{key(t, 2), key(t, 3)}, "cluster", "name", blob)
	for _, id := range []string{k.ID().String(), key(t, 2).ID().String(), key(t, 3).ID().String()} {
		if !strings.Contains(err.Error(), id) {
			t.Errorf("%v does not name key %s", err, id)
		}
	}
	// A change of any byte must be detected.
	for i := range blob {
		changed := bytes.Clone(blob)
		changed[i] ^= 1
		if _, _, err := envelope.Open([]envelope.Key{k}, "cluster", "name", changed); err == nil {
			t.Errorf("byte %d may change", i)
		}
	}
}

func TestKey(t *testing.T) {
	for _, n := range []int{0, 16, 31, 33} {
		if _, err := envelope.NewKey(make([]byte, n)); err == nil {
			t.Errorf("%d bytes are a key", n)
		}
	}
	if !key(t, 1).Equal(key(t, 1)) || key(t, 1).Equal(key(t, 2)) || key(t, 1).Equal(envelope.Key{}) ||
		(envelope.Key{}).Equal(key(t, 1)) || !(envelope.Key{}).Equal(envelope.Key{}) {
		t.Error("Equal")
	}
	if text := (envelope.Key{}).String(); text != "no key" {
		t.Errorf("the zero key is %q", text)
	}
	if text := key(t, 1).String(); text != "key "+key(t, 1).ID().String() {
		t.Errorf("a key is %q", text)
	}
	if key(t, 1).ID() == key(t, 2).ID() {
		t.Error("two keys, one ID")
	}
}

func TestKeyRedacts(t *testing.T) {
	secret := "thisisatest32bytekey123456789012"
	k, err := envelope.NewKey([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	type holder struct {
		Public  envelope.Key
		private envelope.Key
	}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%c", "%U", "%t"} {
		fmt.Fprintf(&out, verb, k)
		fmt.Fprintf(&out, verb, &k)
		fmt.Fprintf(&out, verb, holder{k, k})
		fmt.Fprintf(&out, verb, &holder{k, k})
		fmt.Fprintf(&out, verb, []envelope.Key{k})
	}
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "key", k, "holder", holder{k, k}, "list", []envelope.Key{k})
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "key", k, "holder", holder{k, k}, "list", []envelope.Key{k})
	if err := json.NewEncoder(&out).Encode(holder{k, k}); err != nil {
		t.Fatal(err)
	}
	for _, leak := range []string{secret, hex.EncodeToString([]byte(secret)),
		strings.ToUpper(hex.EncodeToString([]byte(secret))), "116 104 105", "t h i s"} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("leaks as %q", leak)
		}
	}
	if !strings.Contains(out.String(), k.ID().String()) {
		t.Error("does not show the ID")
	}
}

func FuzzOpen(f *testing.F) {
	k := key(f, 1)
	// Every fuzz worker must seal the same blob, because the test fails if Open accepts any other blob.
	blob, err := envelope.Seal(k, "cluster", "name", 7, []byte("text"), bytes.NewReader(make([]byte, 12)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(blob)
	f.Add(blob[:30])
	f.Add([]byte("NSTE\x03"))
	f.Fuzz(func(t *testing.T, data []byte) {
		text, _, err := envelope.Open([]envelope.Key{k}, "cluster", "name", data)
		if (err == nil) != bytes.Equal(data, blob) {
			t.Fatalf("opened %q: %v", text, err)
		}
	})
}
