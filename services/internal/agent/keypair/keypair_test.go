package keypair_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
	"github.com/nstance-kit/nstance/services/internal/agent/keypair"
	"github.com/nstance-kit/nstance/services/internal/proof/foldertest"
)

const (
	unspecified = nstancev1.KeyAlgorithm_KEY_ALGORITHM_UNSPECIFIED
	ed          = nstancev1.KeyAlgorithm_KEY_ALGORITHM_ED25519
	p256        = nstancev1.KeyAlgorithm_KEY_ALGORITHM_ECDSA_P256
)

func store(t *testing.T) (*keypair.Store, *folder.Disk) {
	t.Helper()
	disk, err := folder.Open(filepath.Join(t.TempDir(), "keys"), 0o750)
	if err != nil {
		t.Fatal(err)
	}
	return keypair.NewStore(disk, 0o644), disk
}

func TestEnsureIsIdempotent(t *testing.T) {
	first, disk := store(t)
	edKey, err := first.Ensure("kubelet.server.pub", ed)
	if err != nil {
		t.Fatal(err)
	}
	p256Key, err := first.Ensure("etcd.pub", p256)
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err := x509.ParsePKIXPublicKey(edKey); err != nil {
		t.Fatal(err)
	} else if _, ok := parsed.(ed25519.PublicKey); !ok {
		t.Errorf("asked for Ed25519, got %T", parsed)
	}
	if parsed, err := x509.ParsePKIXPublicKey(p256Key); err != nil {
		t.Fatal(err)
	} else if key, ok := parsed.(*ecdsa.PublicKey); !ok || key.Curve.Params().Name != "P-256" {
		t.Errorf("asked for P-256, got %T", parsed)
	}

	second := keypair.NewStore(disk, 0o640)
	for _, s := range []*keypair.Store{first, second} {
		for name, want := range map[string][]byte{"kubelet.server.pub": edKey, "etcd.pub": p256Key} {
			got, err := s.Ensure(name, unspecified)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("asking again for %s gave another key, or %v", name, err)
			}
		}
	}

	want := []*nstancev1.KeyState{
		{Name: "etcd.pub", Sha256: hexSum(p256Key)},
		{Name: "kubelet.server.pub", Sha256: hexSum(edKey)},
	}
	for _, s := range []*keypair.Store{first, second, keypair.NewStore(disk, 0o640)} {
		if diff := cmp.Diff(want, s.States(), protocmp.Transform()); diff != "" {
			t.Errorf("States: %s", diff)
		}
	}
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func TestFilesOfAPair(t *testing.T) {
	s, disk := store(t)
	der, err := s.Ensure("a.pub", p256)
	if err != nil {
		t.Fatal(err)
	}
	private, err := disk.Read("a.key")
	if err != nil {
		t.Fatal(err)
	}
	key, err := authority.ParseSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	if !key.Public().(*ecdsa.PublicKey).Equal(mustParse(t, der)) {
		t.Error("the private file is of another key")
	}
	text, err := disk.Read("a.pub")
	if err != nil {
		t.Fatal(err)
	}
	if block, rest := pem.Decode(text); block == nil || block.Type != "PUBLIC KEY" || len(rest) > 0 ||
		!bytes.Equal(block.Bytes, der) {
		t.Errorf("public file: %s", text)
	}
	for name, want := range map[string]os.FileMode{"a.key": 0o640, "a.pub": 0o644} {
		if info, err := os.Stat(filepath.Join(disk.Path(), name)); err != nil || info.Mode() != want {
			t.Errorf("%s: mode %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
}

func mustParse(t *testing.T, der []byte) any {
	t.Helper()
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestAlgorithmChangeAndHalfWrittenPair checks that a request for another algorithm makes a new key pair. It also
// simulates a crash between the writes of the two files of a pair. The next request must repair the pair.
func TestAlgorithmChangeAndHalfWrittenPair(t *testing.T) {
	s, disk := store(t)
	before, err := s.Ensure("a.pub", ed)
	if err != nil {
		t.Fatal(err)
	}
	oldPublic, err := disk.Read("a.pub")
	if err != nil {
		t.Fatal(err)
	}
	after, err := s.Ensure("a.pub", p256)
	if err != nil || bytes.Equal(before, after) {
		t.Fatalf("the algorithm changed and the key did not, or %v", err)
	}
	newPublic, err := disk.Read("a.pub")
	if err != nil {
		t.Fatal(err)
	}
	if block, _ := pem.Decode(newPublic); block == nil || !bytes.Equal(block.Bytes, after) {
		t.Errorf("the public file is not of the new key: %s", newPublic)
	}
	if err := disk.Write("a.pub", oldPublic, 0o640); err != nil {
		t.Fatal(err)
	}
	again, err := keypair.NewStore(disk, 0o640).Ensure("a.pub", p256)
	if err != nil || !bytes.Equal(again, after) {
		t.Errorf("another key, or %v", err)
	}
	if mended, err := disk.Read("a.pub"); err != nil || !bytes.Equal(mended, newPublic) {
		t.Errorf("the public file was not restored: %v", err)
	}
}

func TestEnsureRefuses(t *testing.T) {
	s, disk := store(t)
	if err := disk.Write("broken.key", []byte("not a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/hostname", filepath.Join(disk.Path(), "link.key")); err != nil {
		t.Fatal(err)
	}
	for name, algorithm := range map[string]nstancev1.KeyAlgorithm{
		"../a.pub": ed, "a.key": ed, ".pub": ed, "": ed, "broken.pub": ed, "link.pub": ed, "new.pub": 99,
	} {
		if _, err := s.Ensure(name, algorithm); err == nil {
			t.Errorf("Ensure(%q) was accepted", name)
		}
	}
	states := map[string]string{}
	for _, state := range s.States() {
		if state.Sha256 != "" || state.Error == "" {
			t.Errorf("state %v", state)
		}
		states[state.Name] = state.Error
	}
	if len(states) != 7 || !strings.Contains(states["../a.pub"], "separator") ||
		!strings.Contains(states["broken.pub"], "PEM") {
		t.Errorf("states: %v", states)
	}
	if got, err := disk.Read("broken.key"); err != nil || string(got) != "not a key" {
		t.Errorf("the damaged key was touched: %q, %v", got, err)
	}
}

// States omits a key pair whose private key was removed. It reports an error for a private key that is damaged.
func TestStatesMatchTheDisk(t *testing.T) {
	s, disk := store(t)
	for _, name := range []string{"a.pub", "b.pub"} {
		if _, err := s.Ensure(name, ed); err != nil {
			t.Fatal(err)
		}
	}
	if err := disk.Remove("a.key"); err != nil {
		t.Fatal(err)
	}
	if err := disk.Write("b.key", []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	states := s.States()
	if len(states) != 1 || states[0].Name != "b.pub" || states[0].Error == "" || states[0].Sha256 != "" {
		t.Errorf("States = %v", states)
	}
}

func FuzzParsePrivate(f *testing.F) {
	dir := &foldertest.Memory{}
	s := keypair.NewStore(dir, 0o600)
	for name, algorithm := range map[string]nstancev1.KeyAlgorithm{"a.pub": ed, "b.pub": p256} {
		if _, err := s.Ensure(name, algorithm); err != nil {
			f.Fatal(err)
		}
		text, err := dir.Read(strings.TrimSuffix(name, "pub") + "key")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
		f.Add(append(text, text...))
		f.Add(append([]byte("x\n"), text...))
	}
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		key, err := authority.ParseSigner(text)
		if err != nil {
			return
		}
		encoded, err := authority.EncodePrivateKey(key)
		if err != nil {
			t.Fatalf("accepted a key that cannot be written: %v", err)
		}
		if _, err := authority.ParseSigner(encoded); err != nil {
			t.Fatalf("a value that it wrote is refused: %v", err)
		}
	})
}
