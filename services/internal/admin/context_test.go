package admin

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestContexts switches between contexts. Flags and environment variables take precedence over the context.
func TestContexts(t *testing.T) {
	cli, _, _, _ := shards(t)
	home := t.TempDir()
	first, second, _ := strings.Cut(cli.env[envServers], ",")
	file := filepath.Join(home, ".config", "nstance", "config.yaml")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	identity := cli.env[envIdentity]
	cli.env = map[string]string{"HOME": home}
	if _, stderr, code := cli.run(t, "config", "status"); code != exitUsage ||
		!strings.Contains(stderr, "context use") {
		t.Error(code, stderr)
	}
	if _, stderr, code := cli.run(t, "context", "list"); code != exitOK || !strings.Contains(stderr, "no contexts") {
		t.Error(code, stderr)
	}
	writeFile(t, file, []byte("contexts:\n  a:\n    servers: "+first+"\n    identity_dir: "+identity+
		"\n  both:\n    servers: "+first+","+second+"\n    identity_dir: "+identity+"\n    shard: us-b\n"))
	if _, stderr, code := cli.run(t, "context", "use", "c"); code != exitFailure ||
		!strings.Contains(stderr, "there are: a, both") {
		t.Error(code, stderr)
	}
	cli.must(t, "context", "use", "a")
	if out := cli.must(t, "config", "status"); !strings.Contains(out, "us-a") || strings.Contains(out, "us-b") {
		t.Error(out)
	}
	cli.must(t, "context", "use", "both")
	if out := cli.must(t, "config", "status"); strings.Contains(out, "us-a") || !strings.Contains(out, "us-b") {
		t.Error(out)
	}
	if out := cli.must(t, "config", "status", "--shard", "us-a"); !strings.Contains(out, "us-a") {
		t.Error(out)
	}
	cli.env[envContext] = "a"
	if out := cli.must(t, "config", "status"); !strings.Contains(out, "us-a") || strings.Contains(out, "us-b") {
		t.Error(out)
	}
	if out := cli.must(t, "context", "list"); !strings.Contains(out, "*   a") || !strings.Contains(out, "both") {
		t.Error(out)
	}
	// A way to a shard whose own address nothing answers. It belongs to the addresses of the context.
	writeFile(t, file, []byte("current: laptop\ncontexts:\n  laptop:\n    servers: us-a=127.0.0.1:1\n    via: "+first+
		"\n    identity_dir: "+identity+"\n"))
	cli.env[envContext] = ""
	if out := cli.must(t, "status"); !strings.Contains(out, "us-a") {
		t.Error(out)
	}
	if out := cli.must(t, "status", "--servers", second); !strings.Contains(out, "us-b") {
		t.Error(out)
	}
	cli.env[envContext] = "gone"
	if _, stderr, code := cli.run(t, "config", "status"); code != exitFailure ||
		!strings.Contains(stderr, "context list") {
		t.Error(code, stderr)
	}
	cli.env[envContext] = ""
	writeFile(t, file, []byte("context: a\n"))
	if _, stderr, code := cli.run(t, "config", "status"); code != exitFailure ||
		!strings.Contains(stderr, "config.yaml") {
		t.Error(code, stderr)
	}
}

// TestImportedContext imports a context from Terraform's output. Then no command needs a flag for the cluster.
func TestImportedContext(t *testing.T) {
	b := newBucket(t, "file")
	home := t.TempDir()
	b.env = map[string]string{"HOME": home}
	b.stdin = `{"current": "prod", "contexts": {"prod": {"servers": "us-a=10.0.0.1:8993", "shard": "",
		"cluster_id": "example", "storage_provider": "file", "storage_bucket": "` + b.location.Bucket + `",
		"storage_prefix": "some/where", "key_provider": "env", "key_source": "NSTANCE_ENCRYPTION_KEY"}}}`
	if out := b.must(t, "context", "import", "-"); out != "Imported context prod, which is in use.\n" {
		t.Error(out)
	}
	file := filepath.Join(home, ".config", "nstance", "config.yaml")
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	identity := filepath.Join(home, ".config", "nstance", "identities", "prod")
	b.must(t, "cluster", "init")
	if out := b.must(t, "cluster", "register-operator"); !strings.Contains(out, identity) {
		t.Error(out)
	}

	shown := func(args ...string) string { return b.must(t, append([]string{"context", "show"}, args...)...) }
	for _, want := range []string{"servers +us-a=10.0.0.1:8993 +context prod", "identity-dir +.*/prod +context prod",
		"storage-prefix +some/where +context prod", "secrets-provider +object-storage +default"} {
		if out := shown(); !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	b.env["NSTANCE_ADMIN_STORAGE_PREFIX"] = "else"
	if out := shown(); !regexp.MustCompile("storage-prefix +else +NSTANCE_ADMIN_STORAGE_PREFIX").MatchString(out) {
		t.Error(out)
	}
	if out := shown("--storage-prefix", "flag"); !regexp.MustCompile("storage-prefix +flag +--storage-prefix").
		MatchString(out) {
		t.Error(out)
	}
	// The prefix and the cluster's ID belong to another bucket.
	if out := shown("--storage-bucket", "other"); strings.Contains(out, "storage-prefix") ||
		strings.Contains(out, "cluster-id") || !strings.Contains(out, "object-storage") {
		t.Error(out)
	}
	b.env["NSTANCE_ADMIN_STORAGE_PATH_STYLE"] = "maybe"
	if _, stderr, code := b.run(t, "cluster", "verify"); code != exitUsage ||
		!strings.Contains(stderr, `NSTANCE_ADMIN_STORAGE_PATH_STYLE: "maybe"`) {
		t.Error(code, stderr)
	}
}

// TestImportRefuses imports files that are no contexts. Each problem has its path, and nothing is written.
func TestImportRefuses(t *testing.T) {
	home := t.TempDir()
	for text, want := range map[string]string{
		"":           "has no contexts",
		"{":          "standard input: ",
		"context: a": `context: there is no such field; did you mean "contexts"?`,
		"contexts: {prod: {storage_buckt: b, key_provider: x}}": `contexts.prod.key_provider: "x" is none of`,
	} {
		cli := terminalless{env: map[string]string{"HOME": home}, stdin: text}
		if _, stderr, code := cli.run(t, "context", "import", "-"); code != exitFailure ||
			!strings.Contains(stderr, want) || !strings.Contains(stderr, "context --help") {
			t.Errorf("%q: %d, %s", text, code, stderr)
		}
	}
	if entries, err := os.ReadDir(home); err != nil || len(entries) > 0 {
		t.Error(entries, err)
	}
}

// TestStorageOf checks that a command without the flags of a bucket finds the bucket of the context.
func TestStorageOf(t *testing.T) {
	a := newApp("1", Environment{Getenv: func(name string) string {
		return map[string]string{"NSTANCE_ADMIN_STORAGE_BUCKET": "b", "NSTANCE_ADMIN_STORAGE_REGION": "r",
			"NSTANCE_ADMIN_OLD_KEY": "env:A,file:/b"}[name]
	}})
	s, err := a.storageOf(a.groupCommand())
	if err != nil || s.location.Bucket != "b" || s.location.Region != "r" || s.location.Provider != "s3" ||
		len(s.oldKeys) != 2 || s.timeout != storageTime {
		t.Errorf("%+v, %v", s, err)
	}
	given := a.doctorCommand()
	if err := given.Flags().Set("storage-bucket", "c"); err != nil {
		t.Fatal(err)
	}
	if s, err := a.storageOf(given); err != nil || s.location.Bucket != "c" || s.location.Region != "" {
		t.Errorf("%+v, %v", s, err)
	}
}
