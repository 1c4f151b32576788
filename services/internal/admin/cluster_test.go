package admin

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/dev/s3"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

const encryptionKey = "thisisatest32bytekey123456789012"

// bucket is a bucket that the commands under test use. Tests can also read and write it directly.
type bucket struct {
	terminalless
	location objstore.Location
	flags    []string
	store    objstore.Store
}

// newBucket returns an empty bucket of the given storage provider.
func newBucket(t *testing.T, provider string) *bucket {
	t.Helper()
	t.Setenv("NSTANCE_ENCRYPTION_KEY", encryptionKey)
	b := &bucket{location: objstore.Location{Provider: provider, Bucket: filepath.Join(t.TempDir(), "bucket"),
		Prefix: "some/where"}}
	if provider == "s3" {
		b.location.Bucket = "dev"
		serveS3(t)
	}
	b.flags = []string{"--storage-provider", provider, "--storage-bucket", b.location.Bucket, "--storage-prefix",
		b.location.Prefix}
	b.reopen(t)
	return b
}

func (b *bucket) reopen(t *testing.T) {
	t.Helper()
	store, err := open.Open(t.Context(), b.location)
	if err != nil {
		t.Fatal(err)
	}
	b.store = store
}

// serveS3 starts an S3 server on this machine and configures the SDK to use it.
func serveS3(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	read, write := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- s3.Serve(ctx, s3.Options{Addr: "127.0.0.1:0", Dir: t.TempDir(), Bucket: "dev"},
			slog.New(slog.DiscardHandler), write)
		write.Close()
	}()
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		t.Fatal(err, <-ended)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Setenv("AWS_ENDPOINT_URL", strings.TrimSpace(line[strings.Index(line, "http://"):]))
	t.Setenv("AWS_S3_USE_PATH_STYLE", "true")
	t.Setenv("AWS_ACCESS_KEY_ID", "dev")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "dev")
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
	t.Setenv("AWS_REGION", "")
}

func (b *bucket) args(args ...string) []string { return append(args, b.flags...) }

// state opens the bucket as a server does, with the given encryption key.
func (b *bucket) state(t *testing.T, key string) *clusterstate.State {
	t.Helper()
	return clusterstate.New(clusterstate.Options{Cluster: b.store, Shard: b.store, ClusterID: "example",
		ShardID: "dev-1", Secrets: b.secrets(t, key), Now: fleettest.Clock, Rand: fleettest.Rand(6)})
}

// secrets opens the sealed secrets in the bucket.
func (b *bucket) secrets(t *testing.T, key string) secretstore.Store {
	t.Helper()
	current, err := keyring.Parse([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return secretstore.NewObjects(secretstore.Options{Bucket: b.store, Cluster: "example",
		Ring: keyring.Ring{Current: current}, Rand: fleettest.Rand(5)})
}

func (b *bucket) init(t *testing.T) {
	t.Helper()
	b.must(t, b.args("cluster", "init", "--cluster-id", "example")...)
}

func parse[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// fails runs a command line that must fail with the given exit code and message.
func (b *bucket) fails(t *testing.T, code int, want string, args ...string) {
	t.Helper()
	stdout, stderr, got := b.run(t, args...)
	if got != code || !strings.Contains(stderr, want) || !strings.Contains(stderr, "\nNext:") {
		t.Errorf("%s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), got, code, want, stdout, stderr)
	}
}

// stores runs a test on every kind of bucket.
func stores(t *testing.T, test func(t *testing.T, b *bucket)) {
	for _, provider := range []string{"file", "s3"} {
		t.Run(provider, func(t *testing.T) { test(t, newBucket(t, provider)) })
	}
}

// A server can use what "cluster init" creates. A second "cluster init" creates nothing.
func TestClusterInit(t *testing.T) {
	stores(t, func(t *testing.T, b *bucket) {
		var results []initResult
		for seed := range 2 {
			b.rand = byte(seed)
			results = append(results, parse[initResult](t, b.must(t, b.args("cluster", "init", "--cluster-id",
				"example", "-o", "json")...)))
		}
		ca, err := b.state(t, encryptionKey).LoadCA(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		first, second := results[0], results[1]
		if !first.CACreated || !first.NonceKeyCreated || first.CAFingerprint != authority.Fingerprint(
			ca.Certificate()) {
			t.Errorf("%+v", first)
		}
		first.CACreated, first.NonceKeyCreated = false, false
		if diff := cmp.Diff(first, second); diff != "" {
			t.Error(diff)
		}
		if _, err := b.state(t, encryptionKey).LoadNonceKey(t.Context()); err != nil {
			t.Error(err)
		}
		b.fails(t, exitFailure, "does not belong to this name and cluster",
			b.args("cluster", "init", "--cluster-id", "other")...)
		b.fails(t, exitUsage, "--cluster-id is missing", b.args("cluster", "init")...)
		b.fails(t, exitUsage, "--storage-bucket is missing", "cluster", "init", "--cluster-id", "example")
		b.fails(t, exitUsage, "there is no secrets store \"vault\"", b.args("cluster", "secret", "list",
			"--secrets-provider", "vault")...)
		b.fails(t, exitUsage, "have no prefix but the bucket's", b.args("cluster", "secret", "list", "--secrets-prefix",
			"x/")...)
		b.fails(t, exitUsage, "uses its own key", b.args("cluster", "rotate-key", "--secrets-provider",
			"aws-secrets-manager")...)
		t.Setenv("NSTANCE_ENCRYPTION_KEY", strings.ToUpper(encryptionKey))
		b.fails(t, exitFailure, "sealed with another encryption key", b.args("cluster", "init", "--cluster-id",
			"example")...)
		t.Setenv("NSTANCE_ENCRYPTION_KEY", "short")
		b.fails(t, exitFailure, "want 32 raw bytes", b.args("cluster", "init", "--cluster-id", "example")...)
	})
}

// The error of a command names the bucket or the object store that is missing.
func TestNoBucket(t *testing.T) {
	b := newBucket(t, "s3")
	b.fails(t, exitFailure, "NoSuchBucket", "cluster", "nonce", "--storage-bucket", "nope")
	t.Setenv("AWS_MAX_ATTEMPTS", "1")
	t.Setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
	b.fails(t, exitFailure, "request send failed", b.args("cluster", "nonce")...)
	t.Setenv("AWS_S3_USE_PATH_STYLE", "maybe")
	b.fails(t, exitFailure, "AWS_S3_USE_PATH_STYLE", b.args("cluster", "nonce")...)
}

func TestImportCA(t *testing.T) {
	b := newBucket(t, "file")
	ca, err := authority.CreateCA("example", fleettest.Rand(1), fleettest.Now)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := ca.MarshalSecret()
	if err != nil {
		t.Fatal(err)
	}
	block, rest := pem.Decode(secret)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem")
	writeFile(t, certFile, pem.EncodeToMemory(block))
	writeFile(t, keyFile, rest)
	b.fails(t, exitUsage, "ca-key", b.args("cluster", "init", "--cluster-id", "example", "--ca-cert", certFile)...)
	args := b.args("cluster", "init", "--cluster-id", "example", "--ca-cert", certFile, "--ca-key", keyFile, "-o",
		"json")
	if got := parse[initResult](t, b.must(t, args...)); !got.CACreated ||
		got.CAFingerprint != authority.Fingerprint(ca.Certificate()) {
		t.Errorf("%+v", got)
	}
	if got := parse[initResult](t, b.must(t, args...)); got.CACreated {
		t.Error("imported twice")
	}
}

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A nonce is written to standard output or to a file. Servers accept it, whether the cluster ID was given or detected.
func TestNonce(t *testing.T) {
	stores(t, func(t *testing.T, b *bucket) {
		b.fails(t, exitFailure, "there is no cluster in this bucket", b.args("cluster", "nonce")...)
		b.fails(t, exitFailure, "secret not found", b.args("cluster", "nonce", "--cluster-id", "example")...)
		b.init(t)
		key, err := b.state(t, encryptionKey).LoadNonceKey(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "nonce.jwt")
		for seed, args := range [][]string{
			{"cluster", "nonce", "--cluster-id", "example", "--key-provider", "env", "--output", "-"},
			{"cluster", "nonce"},
			{"cluster", "nonce", "--tenant", "prod", "--expiry", "24h", "--output", file},
		} {
			b.rand = byte(seed + 10)
			stdout, stderr, code := b.run(t, b.args(args...)...)
			if code != exitOK {
				t.Fatal(stderr)
			}
			tenant, ttl := "default", 3*time.Hour
			if strings.Contains(stderr, "prod") {
				tenant, ttl = "prod", 24*time.Hour
				text, err := os.ReadFile(file)
				if err != nil || stdout != "" {
					t.Fatal(err, stdout)
				}
				if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
					t.Error(info.Mode(), err)
				}
				stdout = string(text)
			}
			claims, err := authority.ParseNonce(key.Accepted(), "example", stdout, fleettest.Now, false)
			if err != nil {
				t.Fatal(err)
			}
			want := authority.NonceClaims{
				Role: authority.RoleOperator, Cluster: "example", Tenant: tenant, ID: claims.ID,
				JTI: claims.ID.String(), IssuedAt: fleettest.Now,
				NotBefore: fleettest.Now.Add(-authority.Skew), ExpiresAt: fleettest.Now.Add(ttl),
			}
			if diff := cmp.Diff(want, claims, cmpopts.EquateComparable(ident.ID{}, ident.Batch{})); diff != "" {
				t.Error(diff)
			}
			if !strings.Contains(stderr, claims.ID.String()) || strings.Contains(stderr, stdout) {
				t.Error(stderr)
			}
		}
		b.fails(t, exitUsage, "--tenant", b.args("cluster", "nonce", "--tenant", "No")...)
		b.fails(t, exitUsage, "too short", b.args("cluster", "nonce", "--expiry", "0s")...)
	})
}

// A registered operator can call servers immediately. A second registration in the same directory keeps the operator's
// ID, and renews the certificate if its renewal is due.
func TestRegisterOperator(t *testing.T) {
	stores(t, func(t *testing.T, b *bucket) {
		b.init(t)
		dir := filepath.Join(t.TempDir(), "deep", "identity")
		register := func(later time.Duration, args ...string) registered {
			t.Helper()
			b.later, b.rand = later, b.rand+1
			return parse[registered](t, b.must(t, b.args(append([]string{"cluster", "register-operator", "-o", "json"},
				args...)...)...))
		}
		first := register(0, "--tenant", "prod", "--output-dir", dir)
		if !first.Issued || first.Tenant != "prod" || !first.NotAfter.Equal(fleettest.Now.Add(authority.OperatorTTL)) {
			t.Fatalf("%+v", first)
		}
		identity, err := operatorclient.LoadIdentity(dir)
		if err != nil || identity.Who.ID.String() != first.ID || identity.Who.Tenant != "prod" {
			t.Fatal(identity.Who, err)
		}
		for _, name := range []string{"ca.crt", "identity.crt", "identity.key"} {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
				t.Error(name, err)
			}
		}
		state := b.state(t, encryptionKey)
		rec, _, err := state.GetOperator(t.Context(), "prod", identity.Who.ID)
		if err != nil || rec.Revision != 1 || rec.Certificate.Serial != authority.Serial(identity.Leaf) ||
			!rec.Certificate.NotAfter.Equal(first.NotAfter) {
			t.Fatalf("%+v, %v", rec, err)
		}

		ca, err := state.LoadCA(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		api := fixture("dev-1")
		cluster := fleettest.NewCluster(t, "example")
		cluster.CA = ca
		addr, _ := cluster.Serve(t, "dev-1", api)
		b.later = 0
		if out := b.must(t, "group", "list", "--servers", "dev-1="+addr, "--identity-dir", dir); !strings.Contains(out,
			"workers") || !cmp.Equal(api.Tenants, []string{"prod"}) {
			t.Error(out, api.Tenants)
		}

		// A second registration keeps the certificate while more than a third of its life is left. But if
		// --cert-ttl-hours asks for another lifetime, the registration issues a new certificate.
		if again := register(19*24*time.Hour, "--tenant", "prod", "--output-dir", dir); again.Issued ||
			again.ID != first.ID || !again.NotAfter.Equal(first.NotAfter) {
			t.Errorf("%+v", again)
		}
		if renewed := register(21*24*time.Hour, "--tenant", "prod", "--output-dir", dir); !renewed.Issued ||
			renewed.ID != first.ID {
			t.Errorf("%+v", renewed)
		}
		if short := register(21*24*time.Hour, "--tenant", "prod", "--output-dir", dir, "--cert-ttl-hours",
			"1"); !short.Issued || short.NotAfter.Sub(fleettest.Now) != 21*24*time.Hour+time.Hour {
			t.Errorf("%+v", short)
		}
		// The certificate file is lost, but the key still identifies its operator.
		if err := os.Remove(filepath.Join(dir, "identity.crt")); err != nil {
			t.Fatal(err)
		}
		if found := register(0, "--tenant", "prod", "--output-dir", dir); !found.Issued || found.ID != first.ID {
			t.Errorf("%+v", found)
		}
		rec, token, err := state.GetOperator(t.Context(), "prod", identity.Who.ID)
		if err != nil || rec.Revision != 4 {
			t.Fatalf("%+v, %v", rec, err)
		}

		// The caller gives only a public key and an operator ID.
		public, private, err := ed25519.GenerateKey(fleettest.Rand(40))
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKIXPublicKey(public)
		if err != nil {
			t.Fatal(err)
		}
		publicFile, out := filepath.Join(t.TempDir(), "op.pub"), t.TempDir()
		writeFile(t, publicFile, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
		id, err := ident.NewID(ident.OperatorPrefix, fleettest.Now, fleettest.Rand(41))
		if err != nil {
			t.Fatal(err)
		}
		given := register(0, "--public-key-file", publicFile, "--operator-id", id.String(), "--output-dir", out)
		if given.ID != id.String() || given.Tenant != "default" {
			t.Errorf("%+v", given)
		}
		if _, err := os.Stat(filepath.Join(out, "identity.key")); !os.IsNotExist(err) {
			t.Error("a private key was written", err)
		}
		if again := register(0, "--public-key-file", publicFile, "--output-dir", out); again.Issued ||
			again.ID != given.ID {
			t.Errorf("%+v", again)
		}

		// These are rejected: the ID of another operator, a removed operator, an invalid key, and an invalid ID.
		b.fails(t, exitFailure, "registered with another key", b.args("cluster", "register-operator", "--operator-id",
			id.String(), "--output-dir", t.TempDir())...)
		rec.Revision++
		rec.RemovedAt = fleettest.Now
		if _, err := state.PutOperator(t.Context(), rec, token); err != nil {
			t.Fatal(err)
		}
		b.fails(t, exitFailure, "was removed", b.args("cluster", "register-operator", "--tenant", "prod",
			"--operator-id", first.ID, "--output-dir", dir)...)
		secret, err := x509.MarshalPKCS8PrivateKey(private)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, publicFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
		b.fails(t, exitFailure, "PUBLIC KEY", b.args("cluster", "register-operator", "--public-key-file", publicFile,
			"--output-dir", out)...)
		b.fails(t, exitUsage, "--operator-id", b.args("cluster", "register-operator", "--operator-id", firstID,
			"--output-dir", out)...)
		b.fails(t, exitUsage, "--output-dir is missing", b.args("cluster", "register-operator")...)
	})
}

func TestOperators(t *testing.T) {
	stores(t, func(t *testing.T, b *bucket) {
		b.init(t)
		register := func(args ...string) string {
			t.Helper()
			b.later += time.Minute
			return parse[registered](t, b.must(t, b.args(append([]string{"cluster", "register-operator", "-o", "json"},
				args...)...)...)).ID
		}
		dir := t.TempDir()
		mine, other := register("--output-dir", dir), register("--tenant", "prod", "--output-dir", t.TempDir())
		listed := func(args ...string) (ids []string) {
			t.Helper()
			for _, o := range parse[operatorList](t, b.must(t, b.args(
				append([]string{"cluster", "operator", "list", "-o", "json"}, args...)...)...)).Operators {
				ids = append(ids, o.ID)
			}
			return ids
		}
		if got := listed(); !cmp.Equal(got, []string{mine, other}) {
			t.Errorf("%v", got)
		}
		if out := b.must(t, b.args("cluster", "operator", "list", "--tenant", "prod")...); !strings.Contains(out,
			other) || strings.Contains(out, mine) {
			t.Error(out)
		}
		b.fails(t, exitFailure, "operator list", b.args("cluster", "operator", "remove", other, // of another tenant
			"--yes")...)
		b.fails(t, exitUsage, "prefix", b.args("cluster", "operator", "remove", "wrk06dqdx2x25trxcdb0e1fw02vn4",
			"--yes")...)
		b.fails(t, exitUsage, "--tenant", b.args("cluster", "operator", "remove", mine, "--tenant", "A B", "--yes")...)
		id, err := ident.ParseID(mine)
		if err != nil {
			t.Fatal(err)
		}
		var since time.Time
		for range 2 { // the second run changes nothing
			b.later += time.Minute
			b.must(t, b.args("cluster", "operator", "remove", mine, "--yes")...)
			rec, _, err := b.state(t, encryptionKey).GetOperator(t.Context(), "default", id)
			if err != nil || !rec.Removed() || rec.Revision != 2 || !since.IsZero() && !rec.RemovedAt.Equal(since) {
				t.Errorf("%+v, %v", rec, err)
			}
			since = rec.RemovedAt
		}
		if got := listed(); !cmp.Equal(got, []string{other}) {
			t.Errorf("%v", got)
		}
		if out := b.must(t, b.args("cluster", "operator", "list", "--removed")...); !strings.Contains(out, mine) ||
			!strings.Contains(out, "removed 2") {
			t.Error(out)
		}
		t.Setenv("NSTANCE_ENCRYPTION_KEY", encryptionKey)
		b.fails(t, exitFailure, "was removed", b.args("cluster", "register-operator", "--operator-id", mine,
			"--output-dir", dir)...)
	})
}

func TestSecrets(t *testing.T) {
	stores(t, func(t *testing.T, b *bucket) {
		b.init(t)
		b.stdin = "correct horse\n"
		stdout, stderr, code := b.run(t, b.args("cluster", "secret", "set", "db.password")...)
		if code != exitOK || !strings.Contains(stderr, "line break") || strings.Contains(stdout+stderr, "horse") {
			t.Fatal(code, stdout, stderr)
		}
		if out := b.must(t, b.args("cluster", "secret", "get", "db.password")...); out != "correct horse\n" {
			t.Errorf("%q", out)
		}
		binary := filepath.Join(t.TempDir(), "binary")
		writeFile(t, binary, []byte{0xff, 0})
		b.must(t, b.args("cluster", "secret", "set", "binary", "--from-file", binary)...)
		if got := parse[shownSecret](t, b.must(t, b.args("cluster", "secret", "get", "binary", "-o",
			"json")...)); got.Base64 != "/wA=" || got.Value != "" {
			t.Errorf("%+v", got)
		}
		b.fails(t, exitFailure, "secret exists", b.args("cluster", "secret", "set", "binary", "--from-file", binary,
			"--if-absent")...)
		want := "NAME                     OWNER\nbinary                   user\nca.key                   " +
			"cluster\ndb.password              user\nregistration-nonce.key   cluster\n"
		t.Setenv("NSTANCE_ENCRYPTION_KEY", "") // listing names needs no key
		if out := b.must(t, b.args("cluster", "secret", "list")...); out != want {
			t.Error(cmp.Diff(want, out))
		}
		t.Setenv("NSTANCE_ENCRYPTION_KEY", encryptionKey)
		b.must(t, b.args("cluster", "secret", "delete", "binary", "--yes")...)
		b.fails(t, exitFailure, "secret not found", b.args("cluster", "secret", "get", "binary")...)
		b.fails(t, exitUsage, "secret name", b.args("cluster", "secret", "get", "../ca")...)
		b.stdin = ""
		b.fails(t, exitFailure, "is empty", b.args("cluster", "secret", "set", "x")...)

		// The cluster's own keys are never replaced. A lost key can be restored from a valid copy.
		b.stdin = b.must(t, b.args("cluster", "secret", "get", "ca.key")...)
		b.fails(t, exitFailure, "secret exists", b.args("cluster", "secret", "set", "ca.key")...)
		b.fails(t, exitFailure, "own keys", b.args("cluster", "secret", "delete", "ca.key", "--yes")...)
		b.must(t, b.args("cluster", "secret", "delete", "ca.key", "--force", "--yes")...)
		backup := b.stdin
		b.stdin = "no key"
		if _, stderr, code := b.run(t, b.args("cluster", "secret", "set", "ca.key")...); code != exitFailure ||
			strings.Contains(stderr, "no key") {
			t.Error(code, stderr)
		}
		b.fails(t, exitFailure, "the CA's key is missing although", b.args("cluster", "init", "--cluster-id",
			"example")...)
		b.stdin = backup
		if _, stderr, code := b.run(t, b.args("cluster", "secret", "set", "workload-ca.key")...); code != exitFailure ||
			!strings.Contains(stderr, `not "example workloads"`) {
			t.Errorf("the cluster's CA as workload CA: exit code %d, %s", code, stderr)
		}
		b.must(t, b.args("cluster", "secret", "set", "ca.key")...)
		b.init(t)
	})
}

// The output contains secrets only if the user asked for them.
func TestOutputLeaksNoSecrets(t *testing.T) {
	b := newBucket(t, "file")
	b.init(t)
	state := b.state(t, encryptionKey)
	ca, err := state.LoadCA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	secret, err := ca.MarshalSecret()
	if err != nil {
		t.Fatal(err)
	}
	_, private := pem.Decode(secret)
	lines := strings.Split(string(private), "\n")
	dir := t.TempDir()
	b.stdin = "correct horse"
	for _, args := range [][]string{
		{"cluster", "secret", "set", "db"}, {"cluster", "secret", "list", "-o", "json"},
		{"cluster", "register-operator", "--output-dir", dir, "-o", "yaml"},
		{"cluster", "init", "--cluster-id", "example", "-o", "json"}, {"cluster", "verify", "-o", "json"},
		{"cluster", "rotate-key", "--old-key", "env:NSTANCE_ENCRYPTION_KEY"},
		{"cluster", "secret", "set", "ca.key"}, {"cluster", "nonce", "--output", filepath.Join(dir, "nonce")},
		{"cluster", "rotate-key", "--old-key", encryptionKey},
	} {
		stdout, stderr, _ := b.run(t, b.args(args...)...)
		for _, leak := range []string{"horse", encryptionKey, lines[1], "PRIVATE KEY"} {
			if strings.Contains(stdout+stderr, leak) {
				t.Errorf("%s: %q in\n%s%s", strings.Join(args, " "), leak, stdout, stderr)
			}
		}
	}
	identity, err := operatorclient.LoadIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(dir, "identity.key"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(key)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		if text := fmt.Sprintf(verb, identity); strings.Contains(text, fmt.Sprintf("%x", block.Bytes[16:])) ||
			strings.Contains(text, fmt.Sprintf("%d", block.Bytes[16:48])) {
			t.Error("identity shows its key with", verb)
		}
	}
}

func TestRotateKey(t *testing.T) {
	stores(t, func(t *testing.T, b *bucket) {
		b.init(t)
		next := strings.ToUpper(encryptionKey)
		t.Setenv("NSTANCE_ENCRYPTION_KEY", next)
		t.Setenv("OLD_KEY", encryptionKey)
		b.fails(t, exitFailure, "2 of 2 secrets are not under the current key", b.args("cluster", "rotate-key")...)
		b.fails(t, exitUsage, "--old-key", b.args("cluster", "rotate-key", "--old-key", "OLD_KEY")...)
		for _, resealed := range []bool{true, false} {
			got := parse[rotation](t, b.must(t, b.args("cluster", "rotate-key", "--old-key", "env:OLD_KEY", "-o",
				"json")...))
			want := []rotated{{Name: "ca.key", Resealed: resealed}, {Name: "registration-nonce.key",
				Resealed: resealed}}
			if diff := cmp.Diff(want, got.Secrets); diff != "" {
				t.Error(diff)
			}
		}
		if _, err := b.state(t, next).LoadCA(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := b.state(t, encryptionKey).LoadCA(t.Context()); err == nil {
			t.Error("the old key still opens it")
		}
	})
}

// TestClusterRotateCA checks that rotate-ca does not finish while an operator still uses the old CA, and that another
// rotate-ca continues later. It also checks that --status counts this operator and changes nothing. In the end, the CA
// and the nonce key are new.
func TestClusterRotateCA(t *testing.T) {
	stores(t, func(t *testing.T, b *bucket) {
		b.fails(t, exitFailure, "cluster init", b.args("cluster", "rotate-ca", "--yes", "--cluster-id", "example")...)
		b.init(t)
		b.fails(t, exitUsage, "--timeout", b.args("cluster", "rotate-ca", "--timeout", "0s")...)
		first, err := b.state(t, encryptionKey).LoadCA(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		firstNonces, err := b.state(t, encryptionKey).LoadNonceKey(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "identity")
		register := func() registered {
			return parse[registered](t, b.must(t, b.args("cluster", "register-operator", "--output-dir", dir, "-o",
				"json")...))
		}
		operator := register()
		rotate := func() caRotation {
			t.Helper()
			return parse[caRotation](t, b.must(t, b.args("cluster", "rotate-ca", "--no-wait", "--yes", "-o",
				"json")...))
		}
		status := b.args("cluster", "rotate-ca", "--status")
		if got := parse[caRotation](t, b.must(t, append(status, "-o", "json")...)); !got.Finished ||
			got.Step != "none" || got.Waiting != nil {
			t.Errorf("the status before the rotation: %+v", got)
		}
		for _, step := range []string{"announced", "issued"} {
			for range 2 {
				got := rotate()
				if got.Finished || got.Step != step || len(got.Waiting.Operators) != 1 ||
					got.Waiting.Operators[0].ID.String() != operator.ID {
					t.Fatalf("%s: %+v", step, got)
				}
			}
			if got := parse[caRotation](t, b.must(t, append(status, "-o", "json")...)); got.Step != step ||
				len(got.Waiting.Operators) != 1 {
				t.Errorf("the status at step %s: %+v", step, got)
			}
			if out := b.must(t, status...); !strings.Contains(out, "leaders 0, instances 0, operators 1") {
				t.Errorf("the status at step %s: %s", step, out)
			}
			if again := register(); again.ID != operator.ID || !again.Issued {
				t.Errorf("the operator registers again: %+v", again)
			}
			if out := b.must(t, status...); !strings.Contains(out, step) || !strings.Contains(out, "operators 0") {
				t.Errorf("the status at step %s, which all have followed: %s", step, out)
			}
			if again := register(); again.Issued {
				t.Errorf("the operator, which has followed, registers again: %+v", again)
			}
		}
		got := rotate()
		ca, err := b.state(t, encryptionKey).LoadCA(t.Context())
		if err != nil || !got.Finished || got.Step != "none" || ca.Certificate().Equal(first.Certificate()) ||
			got.Fingerprint != authority.Fingerprint(ca.Certificate()) {
			t.Errorf("%+v, %s, %v", got, ca, err)
		}
		nonces, err := b.state(t, encryptionKey).LoadNonceKey(t.Context())
		if err != nil || nonces.Public().Equal(firstNonces.Public()) || len(nonces.Accepted()) != 1 {
			t.Errorf("after the rotation %d nonce keys are accepted, want only a new one: %v", len(nonces.Accepted()),
				err)
		}
		b.must(t, b.args("cluster", "verify")...)
		if out := b.must(t, b.args("cluster", "operator", "list")...); !strings.Contains(out, operator.ID) {
			t.Errorf("the operator after the rotation: %s", out)
		}
	})
}

// TestClusterRotateWorkloadCA checks that a second rotate-workload-ca does not begin another rotation, and that
// --status changes nothing. It also checks that --output-cert writes the certificates that clients must trust.
func TestClusterRotateWorkloadCA(t *testing.T) {
	stores(t, func(t *testing.T, b *bucket) {
		b.init(t)
		b.fails(t, exitFailure, "first leader makes", b.args("cluster", "rotate-workload-ca", "--yes")...)
		b.fails(t, exitUsage, "--notice", b.args("cluster", "rotate-workload-ca", "--notice", "1h")...)
		state := b.state(t, encryptionKey)
		cluster, err := state.LoadCA(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		first, _, err := state.EnsureWorkloadCA(t.Context(), cluster)
		if err != nil {
			t.Fatal(err)
		}
		status := b.args("cluster", "rotate-workload-ca", "--status", "-o", "json")
		want := workloadRotation{Step: "none", Fingerprint: authority.Fingerprint(first[0].Certificate())}
		if got := parse[workloadRotation](t, b.must(t, status...)); got != want {
			t.Errorf("before: %+v, want %+v", got, want)
		}
		begun := parse[workloadRotation](t, b.must(t, b.args("cluster", "rotate-workload-ca", "--yes", "-o",
			"json")...))
		if begun.Step != "announced" || begun.Fingerprint != want.Fingerprint || begun.NewFingerprint == "" ||
			begun.Issues.Sub(fleettest.Now).Round(time.Hour) != 30*24*time.Hour ||
			begun.Ends.Sub(begun.Issues) != 90*24*time.Hour {
			t.Errorf("begun: %+v", begun)
		}
		file := filepath.Join(t.TempDir(), "workload-ca.crt")
		for _, again := range [][]string{status, b.args("cluster", "rotate-workload-ca", "--yes", "-o", "json",
			"--output-cert",
			file)} {
			if got := parse[workloadRotation](t, b.must(t, again...)); got != begun {
				t.Errorf("again: %+v, want %+v", got, begun)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if certs, err := authority.ParseBundle(text); err != nil || len(certs) != 2 ||
			strings.Contains(string(text), "PRIVATE KEY") {
			t.Errorf("%d certificates, %v", len(certs), err)
		}
		b.must(t, b.args("cluster", "verify")...)
	})
}

const example = "../../../examples/config-tmux.jsonc"

// exampleConfig writes a valid configuration of shard dev-1 of the cluster "example" to a file and returns the path.
// replace lists pairs of an old and a new text.
func exampleConfig(t *testing.T, replace ...string) string {
	t.Helper()
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "dev-1.jsonc")
	writeFile(t, path, []byte(strings.NewReplacer(append(replace, `"example-cluster"`, `"example"`)...).Replace(
		string(text))))
	return path
}

func TestVerify(t *testing.T) {
	b := newBucket(t, "file")
	b.fails(t, exitFailure, "there is no cluster in this bucket", b.args("cluster", "verify")...)
	b.fails(t, exitFailure, "no such file", "cluster", "verify", "--storage-provider", "file", "--storage-bucket",
		"/nonexistent")
	b.init(t)
	b.must(t, b.args("config", "push", exampleConfig(t))...)
	b.must(t, b.args("cluster", "register-operator", "--output-dir", t.TempDir())...)
	state := b.state(t, encryptionKey)
	id, err := ident.NewID("wrk", fleettest.Now, fleettest.Rand(7))
	if err != nil {
		t.Fatal(err)
	}
	instance := record.Instance{
		Schema: record.InstanceSchema, ID: id, Kind: "wrk", State: record.Reserved, Revision: 1, Term: 1,
		ReservedTerm: 1, Writer: "w", Cluster: "example", Shard: "dev-1",
		Tenant: "default", CreatedAt: fleettest.Now,
	}
	if _, err := state.PutInstance(t.Context(), instance, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := state.WriteGroups(t.Context(), config.Groups{Term: 1, Revision: 1}, ""); err != nil {
		t.Fatal(err)
	}
	if err := state.WriteApplied(t.Context(), []byte("{}"), "etag", 1); err != nil {
		t.Fatal(err)
	}
	put := func(key string, body []byte) {
		t.Helper()
		if _, err := b.store.Put(t.Context(), key, body, objstore.Always()); err != nil {
			t.Fatal(err)
		}
	}
	put("files/motd", []byte("hello"))
	lock, err := record.EncodeLock(record.Lock{LeaderID: "a", Incarnation: "f00d", Term: 1, Revision: 1, LeaseMS: 10000,
		RenewMS: 5000})
	if err != nil {
		t.Fatal(err)
	}
	put(keys.Leader("dev-1"), lock)
	good := parse[verification](t, b.must(t, b.args("cluster", "verify", "-o", "json")...))
	if good.Objects != 13 || len(good.Problems) > 0 || good.Kinds["instance"] != 1 || good.Kinds["secret"] != 2 {
		t.Fatalf("%+v", good)
	}

	object, err := b.store.Get(t.Context(), keys.Instance("dev-1", "default", id.Storage()))
	if err != nil {
		t.Fatal(err)
	}
	// An instance record of a shard that does not exist.
	put(keys.Instance("lost", "default", id.Storage()), object.Body)
	put(keys.Instance("dev-1", "default", id.Storage()), append(object.Body, "more"...)) // a damaged object
	// A sealed secret cannot be opened if it is stored under another object key.
	put("cluster/secret/copy", mustGet(t, b.store, keys.ClusterSecret("ca.key")))
	put("config/other.jsonc", mustGet(t, b.store, keys.Config("dev-1"))) // names dev-1 as its shard
	put("shard/dev-1/leader.json", []byte("{}"))
	put("groups/dev-1.jsonc", []byte("{"))
	put("what/is/this", nil)
	if err := b.store.Delete(t.Context(), keys.ClusterSecret("registration-nonce.key")); err != nil {
		t.Fatal(err)
	}
	stdout, _, code := b.run(t, b.args("cluster", "verify", "-o", "json")...)
	got := map[string]bool{}
	for _, p := range parse[verification](t, stdout).Problems {
		got[p.Key] = true
		if p.Problem == "" || strings.Contains(p.Problem, "\x00") {
			t.Errorf("%+v", p)
		}
	}
	want := map[string]bool{}
	for _, key := range []string{
		keys.Instance("lost", "default", id.Storage()), keys.Instance("dev-1", "default", id.Storage()),
		"cluster/secret/copy", "config/other.jsonc", "shard/dev-1/leader.json",
		"groups/dev-1.jsonc", "what/is/this", "cluster/secret/registration-nonce.key",
	} {
		want[key] = true
	}
	if diff := cmp.Diff(want, got); diff != "" || code != exitFailure {
		t.Error(code, diff)
	}
}

func mustGet(t *testing.T, store objstore.Store, key string) []byte {
	t.Helper()
	object, err := store.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return object.Body
}

func TestConfigValidate(t *testing.T) {
	b := newBucket(t, "file")
	if out := b.must(t, "config", "validate", exampleConfig(t)); !strings.Contains(out,
		"is valid: shard dev-1 of cluster example") {
		t.Error(out)
	}
	stdout, stderr, code := b.run(t, "config", "validate", "../../contract/testdata/ten-mistakes.jsonc")
	if lines := strings.Count(stdout, "ten-mistakes.jsonc:"); code != exitFailure || lines != 10 ||
		!strings.Contains(stderr, "10 problems") {
		t.Error(code, lines, stdout, stderr)
	}
	b.stdin = "{"
	stdout, _, code = b.run(t, "config", "validate", "-", "--output", "json")
	if got := parse[validation](t, stdout); code != exitFailure || got.Valid || len(got.Problems) != 1 ||
		got.Problems[0].Line != 1 {
		t.Error(code, stdout)
	}
}

func TestConfigPush(t *testing.T) {
	stores(t, func(t *testing.T, b *bucket) {
		state := b.state(t, encryptionKey)
		if out := b.must(t, b.args("config", "push", exampleConfig(t))...); !strings.Contains(out, "dev-1: written") {
			t.Error(out)
		}
		body, token, err := state.ReadConfig(t.Context(), "dev-1")
		if err != nil || !bytes.Contains(body, []byte("// The shard of the development environment")) {
			t.Fatal("comments are lost:", err)
		}
		if out := b.must(t, b.args("config", "push", exampleConfig(t))...); !strings.Contains(out, "is there already") {
			t.Error(out)
		}
		untouched := func() {
			t.Helper()
			if _, now, err := state.ReadConfig(t.Context(), "dev-1"); err != nil || now != token {
				t.Error("it was written:", err)
			}
		}
		changed := exampleConfig(t, `"size": 2`, `"size": 3`)
		b.fails(t, exitFailure, "has the ETag", b.args("config", "push", changed, "--expected-etag", "another")...)
		b.fails(t, exitFailure, "is of shard dev-1, not of dev-2", b.args("config", "push", changed, "--shard",
			"dev-2")...)
		b.fails(t, exitFailure, "of cluster example, the file is of cluster other",
			b.args("config", "push", exampleConfig(t, `"example-cluster"`, `"other"`))...)
		b.fails(t, exitFailure, "10 problems", b.args("config", "push",
			"../../contract/testdata/ten-mistakes.jsonc")...)
		b.fails(t, exitUsage, "no shard's address", b.args("config", "push", changed, "--refresh")...)
		untouched()

		// A new configuration must keep the template that a dynamic group uses.
		size := 1
		groups := config.Groups{Term: 1, Revision: 1, Tenants: map[string]map[string]config.GroupSpec{
			"default": {"batch": {Template: "worker", Size: &size}}}}
		groupsToken, err := state.WriteGroups(t.Context(), groups, "")
		if err != nil {
			t.Fatal(err)
		}
		renamed := exampleConfig(t, `"worker": {`, `"drudge": {`, `"template": "worker"`, `"template": "drudge"`)
		b.fails(t, exitFailure, "default.batch.template", b.args("config", "push", renamed)...)
		untouched()
		if _, err := state.WriteGroups(t.Context(), config.Groups{Term: 1, Revision: 2}, groupsToken); err != nil {
			t.Fatal(err)
		}

		// With --refresh, config push notifies the leader and shows the problems that the leader reports.
		c := fleettest.NewCluster(t, "example")
		api := fixture("dev-1")
		addr, _ := c.Serve(t, "dev-1", api)
		b.env = map[string]string{envServers: "dev-1=" + addr, envIdentity: c.Identity(t, "default", fleettest.Now,
			authority.OperatorTTL)}
		if out := b.must(t, b.args("config", "push", renamed, "--refresh", "--expected-etag",
			string(token), "--yes")...); !strings.Contains(out, "written") || !strings.Contains(out, "updated") {
			t.Error(out)
		}
		if len(api.Calls) != 1 || api.Calls[0] != "RefreshConfig" {
			t.Error(api.Calls)
		}
	})
}

// If another client writes a configuration after `config push` has read it, `config push` does not overwrite the other
// client's configuration.
func TestConfigPushIsConditional(t *testing.T) {
	b := newBucket(t, "file")
	b.must(t, b.args("config", "push", exampleConfig(t))...)
	a := newApp("1", Environment{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string {
		return ""
	}, Now: func() time.Time { return fleettest.Now }, Rand: fleettest.Rand(1)})
	_, shard, _, err := a.readConfig(exampleConfig(t, `"size": 2`, `"size": 3`))
	if err != nil {
		t.Fatal(err)
	}
	// "config push" reads the configuration and then the dynamic groups. In this test, another client writes the
	// configuration just before the groups are read.
	meddler := &meddling{Store: b.store, on: keys.Groups("dev-1"), do: func() {
		if _, err := b.store.Put(t.Context(), keys.Config("dev-1"), []byte("theirs"), objstore.Always()); err != nil {
			t.Error(err)
		}
	}}
	c := compared{name: "dev-1", file: config.Encode(shard), after: shard}
	had, err := a.checkPush(t.Context(), meddler, &c, "")
	if err != nil {
		t.Fatal(err)
	}
	err = a.writePush(t.Context(), meddler, meddler, c, had)
	if err == nil || !strings.Contains(err.Error(), objstore.ErrConflict.Error()) ||
		!strings.Contains(newApp("1", System()).hintOf(err), "push again") {
		t.Error(err)
	}
	if got := mustGet(t, b.store, keys.Config("dev-1")); string(got) != "theirs" {
		t.Errorf("%q", got)
	}
}

// meddling is a bucket that calls the function `do` when a client reads the object with the key `on`.
type meddling struct {
	objstore.Store
	on string
	do func()
}

func (m *meddling) Get(ctx context.Context, key string) (objstore.Object, error) {
	if key == m.on {
		m.do()
	}
	return m.Store.Get(ctx, key)
}

func FuzzParsePublicKey(f *testing.F) {
	for _, seed := range []string{
		"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC " +
			"KEY-----\n",
		"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n-----END " +
			"PRIVATE KEY-----\n",
		"-----BEGIN PUBLIC KEY-----\nA: b\n\nMCow\n-----END PUBLIC KEY-----\nmore", "", "ssh-ed25519 AAAA",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if key, err := authority.ParsePublicKeyPEM(text); err == nil && len(key) != ed25519.PublicKeySize {
			t.Error(len(key))
		}
		if key, err := authority.ParsePrivateKey(text); err == nil && len(key) != ed25519.PrivateKeySize {
			t.Error(len(key))
		}
	})
}
