package system

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// keyRotationSize is the size of the group.
const keyRotationSize = 4

// TestRotateKey rotates the encryption key as docs/how-to/rotate-keys.md says. Each of the two changes of the
// configuration restarts both servers. Each may change the leader only once, and the shard must not lose an instance or
// raise an alert. The same holds when the leader steps down or is stopped.
func TestRotateKey(t *testing.T) {
	runShard(t, "scripts/test.sh rotatekey", local.Trial{}, func(ctx context.Context, stack *local.Stack) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("timeout after 5 minutes"))
		defer cancel()
		return (&keyRotation{stack: stack}).run(ctx)
	})
}

// keyRotation is one run of TestRotateKey.
type keyRotation struct {
	stack    *local.Stack
	operator *local.Operator
	servers  [servers + 1]*local.Process
}

func (k *keyRotation) run(ctx context.Context) (err error) {
	if _, err := k.stack.StartStore(ctx); err != nil {
		return err
	}
	old := config.KeySource{Provider: config.EnvKeySource, Source: "NSTANCE_ENCRYPTION_KEY"}
	next := config.KeySource{Provider: config.FileKeySource, Source: filepath.Join(k.stack.Dir, "new.key")}
	if err := k.put(ctx, old); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if err := k.startServer(ctx, n); err != nil {
			return err
		}
	}
	if _, err := k.stack.AwaitLine(ctx, "serving as leader", 0); err != nil {
		return err
	}
	identity := filepath.Join(k.stack.Dir, "identity")
	if err := k.admin(ctx, "register-operator", old, "--output-dir", identity, "--role", "admin"); err != nil {
		return err
	}
	if k.operator, err = k.stack.ConnectWith(identity); err != nil {
		return err
	}
	defer k.operator.Close()
	if _, err := k.operator.AwaitHealthy(ctx, keyRotationSize); err != nil {
		return err
	}
	if _, _, err := awaitLeaderWithHeir(ctx, k.stack); err != nil {
		return err
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails, see crypto/rand
	if err := os.WriteFile(next.Source, []byte(base64.StdEncoding.EncodeToString(key)), 0o600); err != nil {
		return err
	}
	err = k.change(ctx, "both keys", next, old)
	if err := k.admin(ctx, "rotate-key", next, "--old-key", "env:"+old.Source); err != nil {
		return err
	}
	return errors.Join(err, k.change(ctx, "only the new key", next), k.admin(ctx, "verify", next),
		k.planned(ctx, "the leader steps down", func(ctx context.Context, _ int) error {
			_, err := k.operator.StepDown(ctx, &nstancev1.StepDownRequest{})
			return err
		}),
		k.planned(ctx, "the leader is stopped and started", func(ctx context.Context, leader int) error {
			if err := k.servers[leader].Stop(30 * time.Second); err != nil {
				return err
			}
			return k.startServer(ctx, leader)
		}))
}

func (k *keyRotation) startServer(ctx context.Context, n int) (err error) {
	k.servers[n], err = k.stack.StartServer(ctx, n)
	return err
}

// planned changes the leader, and checks what that costs.
func (k *keyRotation) planned(ctx context.Context, name string, end func(ctx context.Context, leader int) error) error {
	leader, term, err := awaitLeaderWithHeir(ctx, k.stack)
	if err != nil {
		return err
	}
	before, err := k.lines()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := end(ctx, leader); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := k.stack.AwaitLine(ctx, "serving as leader", term); err != nil {
		return err
	}
	took := time.Since(began)
	if _, err := k.operator.AwaitHealthy(ctx, keyRotationSize); err != nil {
		return err
	}
	lines, err := k.lines()
	if err != nil {
		return err
	}
	return checkRestarts(name, took, term, lines[len(before):])
}

// put writes a configuration with an encryption key and earlier ones.
func (k *keyRotation) put(ctx context.Context, key config.KeySource, earlier ...config.KeySource) error {
	return k.stack.PutConfig(ctx, func(c *config.Shard) {
		spec := c.Groups[local.Tenant][group]
		spec.Size = new(keyRotationSize)
		c.Groups[local.Tenant][group] = spec
		c.Server.HealthCheckInterval = duration(time.Second)
		c.Cluster.Secrets.EncryptionKey, c.Cluster.Secrets.OldEncryptionKeys = &key, earlier
	})
}

// change puts a configuration with other keys in force, and checks what that costs.
func (k *keyRotation) change(ctx context.Context, name string, key config.KeySource,
	earlier ...config.KeySource) error {
	before, err := k.lines()
	if err != nil {
		return err
	}
	_, term, err := awaitLeaderWithHeir(ctx, k.stack)
	if err != nil {
		return err
	}
	if err := k.put(ctx, key, earlier...); err != nil {
		return err
	}
	began := time.Now()
	answer, err := k.operator.RefreshConfig(ctx, &nstancev1.RefreshConfigRequest{})
	if err != nil || !answer.GetRestarting() {
		return fmt.Errorf("%s: the leader does not restart: %v, %w", name, answer, err)
	}
	if err := k.awaitInForce(ctx, answer.GetEtag()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	inForce := time.Since(began)
	if _, err := k.operator.AwaitHealthy(ctx, keyRotationSize); err != nil {
		return err
	}
	if _, _, err := awaitLeaderWithHeir(ctx, k.stack); err != nil {
		return err
	}
	lines, err := k.lines()
	if err != nil {
		return err
	}
	return checkRestarts(name, inForce, term, lines[len(before):])
}

// awaitInForce waits until a leader has applied the configuration.
func (k *keyRotation) awaitInForce(ctx context.Context, etag string) error {
	for {
		status, err := k.operator.GetConfigStatus(ctx, &nstancev1.GetConfigStatusRequest{})
		if err == nil && status.GetEtag() == etag {
			return nil
		}
		if err := local.Pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("not in force: %w", err)
		}
	}
}

// logLine is a line in the log of a server.
type logLine struct {
	local.Line
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
}

// lines returns the lines in the logs of both servers, in the order of their times.
func (k *keyRotation) lines() (all []logLine, err error) {
	for n := 1; n <= servers; n++ {
		text, err := os.ReadFile(k.stack.LogFile(local.ServerName(n)))
		if err != nil {
			return nil, err
		}
		for raw := range bytes.Lines(text) {
			var line logLine
			if bytes.HasSuffix(raw, []byte("\n")) && json.Unmarshal(raw, &line) == nil {
				all = append(all, line)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b logLine) int { return a.Time.Compare(b.Time) })
	return all, nil
}

// checkRestarts prints and checks what a change of the leader has cost. term is the term before.
func checkRestarts(name string, inForce time.Duration, term uint64, lines []logLine) error {
	var changes int
	var without time.Duration
	leads, ended := true, time.Time{}
	found := map[string][]string{}
	for _, line := range lines {
		switch {
		case line.Msg == "leading no more" && leads: // another leader may end before it serves
			leads, ended = false, line.Time
		case line.Msg == "became leader" && line.Term > term:
			changes++
		case line.Msg == "serving as leader" && !leads:
			leads = true
			without += line.Time.Sub(ended)
		case line.Msg == "event" && (line.Kind == "instance_lost" || line.Kind == "alert_raised" ||
			line.Kind == "instance_deleted"):
			found[line.Kind] = append(found[line.Kind], line.Reason)
		}
	}
	fmt.Printf("%s: done after %.1f s; changes of the leader: %d; without a leader: %d ms; lost: %d; alerts: %d\n",
		name, inForce.Seconds(), changes, without.Milliseconds(), len(found["instance_lost"]),
		len(found["alert_raised"]))
	if changes != 1 || len(found) > 0 {
		return fmt.Errorf("%s: %d changes of the leader, want 1; events that must not happen: %v", name, changes, found)
	}
	return nil
}

// admin runs a command of nstance-admin cluster with an encryption key.
func (k *keyRotation) admin(ctx context.Context, command string, key config.KeySource, args ...string) error {
	args = append([]string{"cluster", command, "--storage-bucket", local.Bucket, "--key-provider", key.Provider,
		"--key-source", key.Source}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(k.stack.Bin, "nstance-admin"), args...)
	cmd.Env = k.stack.Env()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nstance-admin %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
