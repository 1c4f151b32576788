// Package gcp applies the examples for Google Cloud to the fake of Google Cloud, and destroys them. It uses tofu or
// terraform, the real Google provider, and this repository's provider. The instances are records without machines.
package gcp

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
)

const root = "../../.."

var terraformFlag = flag.String("terraform", "", "path of terraform; without it tofu applies the stacks")

// stack is a copy of an example, with a fake cloud of its own.
type stack struct {
	*testing.T
	cloud       *fakegcp.Cloud
	cli, dir    string
	environment []string
	vars        map[string]any
}

func newStack(t *testing.T, example string, zones ...string) *stack {
	t.Helper()
	if testing.Short() {
		t.Skip("stacks take minutes")
	}
	cloud, err := fakegcp.New(zones...)
	if err != nil {
		t.Fatal(err)
	}
	cloud.Compute.AddImage(fakegcp.Project, "nstance-server-1", "nstance-server-amd64")
	server := httptest.NewTLSServer(cloud)
	t.Cleanup(server.Close)
	work := t.TempDir()
	s := &stack{T: t, cloud: cloud, cli: *terraformFlag, dir: filepath.Join(work, "examples", "gcp", example)}
	roots := filepath.Join(work, "roots.pem")
	s.must(os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: server.Certificate().Raw}), 0o600))
	for _, part := range []string{"modules/gcp", "examples/gcp"} {
		s.must(os.CopyFS(filepath.Join(work, part), os.DirFS(filepath.Join(root, part))))
	}
	if s.cli == "" {
		s.cli = s.run(root, "scripts/tool.sh", "tofu")
	}
	provider := filepath.Join(work, "terraform-provider-nstance")
	s.run(root, "go", "build", "-tags", "grpcnotrace", "-o", provider, "./terraform-provider-nstance")
	config := s.run(root, "scripts/tf-env.sh", "--google", provider, filepath.Join(work, "terraform.rc"))
	environment := fakegcp.Environment(server.URL)
	maps.Copy(environment, map[string]string{"SSL_CERT_FILE": roots, "TF_CLI_CONFIG_FILE": config,
		"GOOGLE_APPLICATION_CREDENTIALS": credentials.Write(t, fakegcp.Project), "CHECKPOINT_DISABLE": "1",
		"TF_IN_AUTOMATION": "1"})
	s.environment = os.Environ()
	for name, value := range environment {
		s.environment = append(s.environment, name+"="+value)
	}
	s.makeKey(server)
	s.vars = map[string]any{"cluster": "solo", "encryption_key": "projects/" + fakegcp.Project + "/secrets/key",
		"force_destroy": true, "wait_for_leader": false, "worker_count": 0,
		"agent_image": "projects/" + fakegcp.Project + "/global/images/nstance-agent-1"}
	s.run(s.dir, s.cli, "init", "-input=false", "-no-color")
	return s
}

// makeKey does what the documentation tells the user to do: it makes a secret with the encryption key.
func (s *stack) makeKey(server *httptest.Server) {
	s.Helper()
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	for _, call := range [][2]string{
		{"?secretId=key", `{"replication": {"automatic": {}}}`},
		{"/key:addVersion", `{"payload": {"data": "` + base64.StdEncoding.EncodeToString([]byte(key)) + `"}}`},
	} {
		r, err := http.NewRequestWithContext(s.Context(), http.MethodPost, server.URL+"/secretmanager/v1/projects/"+
			fakegcp.Project+"/secrets"+call[0], strings.NewReader(call[1]))
		s.must(err)
		r.Header.Set("Authorization", "Bearer token-of-"+credentials.Account)
		answer, err := server.Client().Do(r)
		s.must(err)
		if _ = answer.Body.Close(); answer.StatusCode != http.StatusOK {
			s.Fatalf("make the key: %s", answer.Status)
		}
	}
}

func (s *stack) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// run runs a program that must succeed, and returns its output.
func (s *stack) run(dir, name string, args ...string) string {
	s.Helper()
	code, out, errors := s.command(dir, name, args...)
	if code != 0 {
		s.Fatalf("%s %s: exit code %d\n%s%s", name, strings.Join(args, " "), code, out, errors)
	}
	return strings.TrimSpace(out)
}

func (s *stack) command(dir, name string, args ...string) (code int, out, errors string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, s.environment, &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		s.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// terraform runs a command of the CLI with the stack's variables.
func (s *stack) terraform(args ...string) (code int, output string) {
	s.Helper()
	text, err := json.Marshal(s.vars)
	s.must(err)
	s.must(os.WriteFile(filepath.Join(s.dir, "terraform.tfvars.json"), text, 0o600))
	code, out, errors := s.command(s.dir, s.cli, append(args, "-input=false", "-no-color")...)
	return code, out + errors
}

func (s *stack) apply() {
	s.Helper()
	began := time.Now()
	if code, output := s.terraform("apply", "-auto-approve"); code != 0 {
		s.Fatalf("apply: exit code %d\n%s", code, output)
	}
	s.Logf("apply took %.1f s", time.Since(began).Seconds())
}

func (s *stack) isConverged() {
	s.Helper()
	if code, output := s.terraform("plan", "-detailed-exitcode"); code != 0 {
		s.Fatalf("a plan right after apply finds changes (exit code %d):\n%s", code, output)
	}
}

// servers returns the names of the servers' instances.
func (s *stack) servers() (names []string) {
	s.cloud.Compute.Do(func() {
		for _, r := range s.cloud.Compute.All("", "instances") {
			names = append(names, r.Name())
		}
	})
	return names
}

// becomes waits until the shard has the given number of servers that are not in gone.
func (s *stack) becomes(size int, gone ...string) []string {
	s.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		names := s.servers()
		old := slices.ContainsFunc(names, func(name string) bool { return slices.Contains(gone, name) })
		if len(names) == size && !old {
			return names
		}
		if time.Now().After(deadline) {
			s.Fatalf("servers %v, want %d without %v", names, size, gone)
		}
	}
}

func TestSingleShard(t *testing.T) {
	s := newStack(t, "single-shard", "us-central1-a")
	before := s.cloud.Inventory()
	s.apply()
	s.isConverged()
	old := s.becomes(1)

	// The group repairs a server that was deleted behind its back, and keeps its name.
	s.cloud.Compute.Vanish(fmt.Sprintf("projects/%s/zones/us-central1-a/instances/%s", fakegcp.Project, old[0]))
	if names := s.becomes(1); names[0] != old[0] {
		t.Errorf("the repaired server is %s, want %s", names[0], old[0])
	}

	// Another machine type rolls the servers.
	s.vars["server_instance_type"] = "e2-small"
	s.apply()
	s.becomes(1, old...)
	s.isConverged()

	s.vars["server_count"] = 0
	s.apply()
	s.becomes(0)
	s.isConverged()

	s.vars["server_count"] = 2 // the leader's address becomes that of a load balancer
	s.apply()
	s.becomes(2)
	s.isConverged()

	if code, output := s.terraform("destroy", "-auto-approve"); code != 0 {
		t.Fatalf("destroy: exit code %d\n%s", code, output)
	}
	if diff := cmp.Diff(before, s.cloud.Inventory()); diff != "" {
		t.Errorf("after destroy (-before apply +now):\n%s", diff)
	}
}
