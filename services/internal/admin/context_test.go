package admin

import (
	"os"
	"path/filepath"
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
