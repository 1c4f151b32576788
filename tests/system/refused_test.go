package system

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/local"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
)

// TestRefusedConfiguration gives a running shard configurations that its servers cannot run. It does that in three
// ways: with an apply of Terraform, with `nstance-admin config push`, and by writing to the bucket. Each configuration
// must be refused, either before it is written or by the leader. Afterwards, the leader must still replace a killed VM.
// If the leader is killed, the next leader must also replace a killed VM. In the end, the corrected configuration must
// be applied.
func TestRefusedConfiguration(t *testing.T) {
	runShard(t, "scripts/test.sh refused", local.Trial{}, func(ctx context.Context, stack *local.Stack) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Minute, errors.New("timeout after 10 minutes"))
		defer cancel()
		r := &refused{stack: stack}
		if err := r.start(ctx); err != nil {
			return err
		}
		defer r.operator.Close()
		return r.run(ctx)
	})
}

// refusedSize is the size of the group in examples/local.
const refusedSize = 2

// refused is one run of TestRefusedConfiguration.
type refused struct {
	stack     *local.Stack
	state     *clusterstate.State
	operator  *local.Operator
	terraform *local.Terraform
	module    string // the good Terraform configuration
	document  string // the good configuration of the shard, as applied
	servers   [servers + 1]*local.Process
	// adapt, if not nil, changes the applied configuration before the servers start.
	adapt func(*config.Shard)
}

// badConfiguration replaces a text in the Terraform configuration and a text in the shard's document.
type badConfiguration struct {
	name             string
	module, document [2]string
	// want is a text that the error of every refusal must contain.
	want string
}

func (r *refused) file(name string) string { return filepath.Join(r.stack.Dir, name) }

// start applies examples/local and starts the servers. From then on, each apply also tells the leader to read the
// configuration.
func (r *refused) start(ctx context.Context) (err error) {
	if _, err := r.stack.StartStore(ctx); err != nil {
		return err
	}
	if r.terraform, err = r.stack.Terraform(*terraformFlag); err != nil {
		return err
	}
	if err := r.terraform.Apply(ctx, r.stack.Variables()); err != nil {
		return err
	}
	if r.state, err = r.stack.State(ctx); err != nil {
		return err
	}
	if err := r.adaptConfig(ctx); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if r.servers[n], err = r.stack.StartServer(ctx, n); err != nil {
			return err
		}
	}
	if r.operator, err = r.stack.ConnectAs(ctx, r.file("identity")); err != nil {
		return err
	}
	if _, err := r.operator.AwaitHealthy(ctx, refusedSize); err != nil {
		return err
	}
	document, _, err := r.state.ReadConfig(ctx, local.Shard)
	if err != nil {
		return err
	}
	module, err := os.ReadFile(r.file("terraform/main.tf"))
	if err != nil {
		return err
	}
	r.document = string(document)
	var servers []string
	for server := range strings.SplitSeq(r.stack.AdminServers(), ",") {
		servers = append(servers, strings.TrimPrefix(server, local.Shard+"="))
	}
	r.module, err = replaceOnce(string(module), "provider \"nstance\" {\n", fmt.Sprintf(
		"provider \"nstance\" {\n  operator = { identity_dir = %q, servers = { %q = %q } }\n", r.file("identity"),
		local.Shard, strings.Join(servers, ",")))
	return err
}

// adaptConfig applies r.adapt to the configuration in the bucket.
func (r *refused) adaptConfig(ctx context.Context) error {
	if r.adapt == nil {
		return nil
	}
	document, token, err := r.state.ReadConfig(ctx, local.Shard)
	if err != nil {
		return err
	}
	shard, problems := config.ParseStored("config", document)
	if err := problems.Err(); err != nil {
		return err
	}
	r.adapt(shard)
	_, err = r.state.WriteConfig(ctx, local.Shard, config.Encode(shard), token)
	return err
}

func (r *refused) run(ctx context.Context) error {
	for _, bad := range []badConfiguration{
		{"a provider that does not exist",
			[2]string{`kind = "tmux"`, `kind = "vsphere"`}, [2]string{`"kind": "tmux"`, `"kind": "vsphere"`},
			"vsphere"},
		{"an encryption key that is not there",
			[2]string{`{ encryption_key = local.encryption_key,`,
				`{ encryption_key = { provider = "env", source = "NO_SUCH_KEY" },`},
			[2]string{`"source": "NSTANCE_ENCRYPTION_KEY"`, `"source": "NO_SUCH_KEY"`}, "NO_SUCH_KEY"},
		{"cluster storage that cannot be reached",
			[2]string{"cluster = {\n", "cluster = {\n" + `storage = { provider = "s3", bucket = "other", ` +
				`region = "us-east-1", endpoint = "http://127.0.0.1:1" }` + "\n"},
			[2]string{`"cluster": {`, `"cluster": { "storage": { "provider": "s3", "bucket": "other", ` +
				`"region": "us-east-1", "endpoint": "http://127.0.0.1:1" },`}, "127.0.0.1:1"},
		{"an argument that the provider refuses",
			[2]string{"defaults = {\n", "defaults = {\nargs = { env = \"A=b\" }\n"},
			[2]string{`"defaults": {`, `"defaults": { "args": { "env": "A=b" },`}, "args.env"},
	} {
		if err := r.refuse(ctx, bad); err != nil {
			return fmt.Errorf("%s: %w", bad.name, err)
		}
	}
	leader, term, err := awaitLeaderWithHeir(ctx, r.stack)
	if err != nil {
		return err
	}
	if err := r.servers[leader].Kill(); err != nil {
		return err
	}
	if _, err := r.stack.AwaitLine(ctx, "serving as leader", term); err != nil {
		return err
	}
	if err := r.replaceVM(ctx); err != nil {
		return fmt.Errorf("after the end of the leader: %w", err)
	}
	fmt.Println("refused: the successor of a killed leader replaced a VM")

	if _, err := r.stack.StartServer(ctx, leader); err != nil {
		return err
	}
	if err := r.apply(ctx, r.module); err != nil {
		return fmt.Errorf("apply of the corrected configuration: %w", err)
	}
	if _, err := r.operator.Refresh(ctx); err != nil {
		return err
	}
	return awaitConverged(ctx, r.stack, r.operator, refusedSize)
}

// refuse tries to give the shard a bad configuration in three ways: with Terraform, with nstance-admin, and by writing
// to the bucket. Each must be refused, and the leader must still replace a VM.
func (r *refused) refuse(ctx context.Context, bad badConfiguration) error {
	module, err := replaceOnce(r.module, bad.module[0], bad.module[1])
	if err != nil {
		return err
	}
	document, err := replaceOnce(r.document, bad.document[0], bad.document[1])
	if err != nil {
		return err
	}
	path := r.file("bad.jsonc")
	if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
		return err
	}
	for _, way := range []struct {
		name string
		try  func() error
	}{
		{"apply", func() error { return r.apply(ctx, module) }},
		{"config push", func() error { return r.push(ctx, path) }},
		{"write to the bucket", func() error { return r.write(ctx, document) }},
	} {
		err := way.try()
		if err == nil {
			return fmt.Errorf("%s: no refusal", way.name)
		}
		if !strings.Contains(err.Error(), bad.want) {
			return fmt.Errorf("%s: the refusal does not name %s: %w", way.name, bad.want, err)
		}
	}
	if err := r.replaceVM(ctx); err != nil {
		return err
	}
	fmt.Printf("refused: %s; the leader replaced a VM\n", bad.name)
	return nil
}

// apply applies a Terraform configuration. Its error contains the output of Terraform on one line.
func (r *refused) apply(ctx context.Context, module string) error {
	if err := os.WriteFile(r.file("terraform/main.tf"), []byte(module), 0o600); err != nil {
		return err
	}
	log := r.stack.LogFile("terraform")
	if err := os.Truncate(log, 0); err != nil {
		return err
	}
	err := r.terraform.Apply(ctx, r.stack.Variables())
	if err == nil {
		return nil
	}
	output, readErr := os.ReadFile(log)
	return errors.Join(err, readErr, errors.New(strings.Join(strings.Fields(string(output)), " ")))
}

// push runs `nstance-admin config push --refresh`. Its error contains the output.
func (r *refused) push(ctx context.Context, path string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(r.stack.Bin, "nstance-admin"), "config", "push", path, "--refresh",
		"--yes", "--storage-bucket", local.Bucket, "--identity-dir", r.file("identity"), "--servers",
		r.stack.AdminServers())
	cmd.Env = r.stack.Env()
	output, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	return nil
}

// write writes the configuration to the bucket and makes the leader read it.
func (r *refused) write(ctx context.Context, document string) error {
	_, token, err := r.state.ReadConfig(ctx, local.Shard)
	if err != nil {
		return err
	}
	if _, err := r.state.WriteConfig(ctx, local.Shard, []byte(document), token); err != nil {
		return err
	}
	_, err = r.operator.Refresh(ctx)
	return err
}

// replaceVM kills a VM and waits until another VM has replaced it.
func (r *refused) replaceVM(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("a killed VM was not replaced in a minute"))
	defer cancel()
	killed, err := killVM(ctx, r.stack, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		return err
	}
	return awaitReplaced(ctx, r.operator, killed, refusedSize)
}

// replaceOnce replaces a text that occurs exactly once.
func replaceOnce(text, old, replacement string) (string, error) {
	if n := strings.Count(text, old); n != 1 {
		return "", fmt.Errorf("%q occurs %d times in:\n%s", old, n, text)
	}
	return strings.Replace(text, old, replacement, 1), nil
}
