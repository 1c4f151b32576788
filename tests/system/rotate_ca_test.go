package system

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/local"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
)

const (
	// rotationSize is the size of the group. The agents of the group must change to the new CA.
	rotationSize = 4
	// rotationLimit limits the time of one rotation. In each step, the rotation waits until the leaders and the agents
	// use the CAs of the step. Leaders need up to 3 minutes, and agents up to 5 minutes more.
	rotationLimit = 45 * time.Minute
)

// TestRotateCA rotates the cluster's CA and nonce key with `nstance-admin cluster rotate-ca` while a client of the
// operator API calls the shard every half second. The rotation has two steps. In each step, the test interrupts the
// command once and starts it again, and kills a VM, which must be replaced. In the first step it also kills the leader.
// No call may fail because of a certificate, and no other VM may be replaced. In the end, programs may trust only the
// new CA, and may accept only nonces of the new key.
func TestRotateCA(t *testing.T) {
	runShard(t, "scripts/test.sh rotateca", local.Trial{}, func(ctx context.Context, stack *local.Stack) error {
		ctx, cancel := context.WithTimeoutCause(ctx, rotationLimit, fmt.Errorf("no end after %v", rotationLimit))
		defer cancel()
		supervising, stop := context.WithCancel(ctx)
		r := &rotation{stack: stack, identity: filepath.Join(stack.Dir, "identity"), began: time.Now()}
		defer r.background.Wait()
		defer stop()
		if err := r.start(ctx, supervising); err != nil {
			return err
		}
		return r.run(ctx)
	})
}

// rotation is one run of TestRotateCA.
type rotation struct {
	stack      *local.Stack
	identity   string // directory of the client's identity
	state      *clusterstate.State
	servers    [servers + 1]*supervised
	background sync.WaitGroup
	began      time.Time

	mu      sync.Mutex
	calls   int
	refused []string      // errors of calls that were refused for a certificate
	outage  time.Duration // the longest time without a successful call
}

func (r *rotation) note(format string, args ...any) {
	fmt.Printf("rotate-ca: %5.0f s  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// admin runs nstance-admin. Its error contains the output.
func (r *rotation) admin(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(r.stack.Bin, "nstance-admin"), args...)
	cmd.Env = r.stack.Env()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("nstance-admin %s: %w: %s%s", args[0], err, output, stderr.Bytes())
	}
	return output, nil
}

// register registers the client of the operator API. If the client is already registered, register renews its
// certificate when the rotation requires a new one.
func (r *rotation) register(ctx context.Context) error {
	_, err := r.admin(ctx, "cluster", "register-operator", "--cluster-id", local.Cluster, "--storage-bucket",
		local.Bucket, "--output-dir", r.identity)
	return err
}

// instances returns the IDs of the instances, and whether each is healthy.
func (r *rotation) instances(ctx context.Context) (map[string]bool, error) {
	output, err := r.admin(ctx, "instance", "list", "--shard", local.Shard, "--identity-dir", r.identity, "--servers",
		r.stack.AdminServers(), "--request-timeout", "5s", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Shards []struct {
			Instances []struct {
				ID     string `json:"instance_id"`
				State  string `json:"state"`
				Health string `json:"health"`
			} `json:"instances"`
		} `json:"shards"`
	}
	if err := json.Unmarshal(output, &list); err != nil {
		return nil, err
	}
	healthy := map[string]bool{}
	for _, shard := range list.Shards {
		for _, i := range shard.Instances {
			if i.State != "deleted" {
				healthy[i.ID] = i.Health == "healthy"
			}
		}
	}
	return healthy, nil
}

// awaitInstances waits until rotationSize instances are healthy and a given one no longer exists.
func (r *rotation) awaitInstances(ctx context.Context, old string) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("timeout after 2 minutes"))
	defer cancel()
	for {
		found, err := r.instances(ctx)
		_, there := found[old]
		if err == nil && len(found) == rotationSize && !there && !slices.Contains(slices.Collect(maps.Values(found)),
			false) {
			return slices.Sorted(maps.Keys(found)), nil
		}
		if ended := local.Pause(ctx, 200*time.Millisecond); ended != nil {
			return nil, fmt.Errorf("want %d healthy instances: %w: found %v, %w", rotationSize, ended, found, err)
		}
	}
}

func (r *rotation) start(ctx, supervising context.Context) (err error) {
	if _, err := r.stack.StartStore(ctx); err != nil {
		return err
	}
	if err := r.stack.PutConfig(ctx, func(c *config.Shard) { useShortTimes(c, rotationSize) }); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		r.servers[n] = &supervised{start: func(ctx context.Context) (*local.Process, error) {
			return r.stack.StartServer(ctx, n)
		}, delay: 100 * time.Millisecond}
		if err := r.servers[n].begin(ctx); err != nil {
			return err
		}
		r.background.Go(func() { r.servers[n].supervise(supervising) })
	}
	if r.state, err = r.stack.State(ctx); err != nil {
		return err
	}
	if _, err := r.stack.AwaitLine(ctx, "serving as leader", 0); err != nil {
		return err
	}
	return r.register(ctx)
}

// call calls the operator API until ctx ends. Every 20 s it renews the client's identity, as a user's scheduled job
// would.
func (r *rotation) call(ctx context.Context) {
	last, renewed := time.Now(), time.Now()
	for local.Pause(ctx, 500*time.Millisecond) == nil {
		if time.Since(renewed) > 20*time.Second {
			_ = r.register(ctx) // the next renewal is in 20 s
			renewed = time.Now()
		}
		_, err := r.instances(ctx)
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		r.calls++
		r.outage = max(r.outage, time.Since(last))
		if err == nil {
			last = time.Now()
		} else if text := err.Error(); strings.Contains(text, "x509") || strings.Contains(text, "certificate") ||
			strings.Contains(text, "tls:") {
			r.refused = append(r.refused, text)
		}
		r.mu.Unlock()
	}
}

// rotate starts rotate-ca. It returns the command and the path of its output, which is complete when the command has
// ended.
func (r *rotation) rotate(ctx context.Context) (cmd *exec.Cmd, log string, err error) {
	log = r.stack.LogFile("rotate-ca")
	out, err := os.Create(log)
	if err != nil {
		return nil, "", err
	}
	defer out.Close()
	cmd = exec.CommandContext(ctx, filepath.Join(r.stack.Bin, "nstance-admin"), "cluster", "rotate-ca",
		"--yes", "--storage-bucket", local.Bucket)
	cmd.Env, cmd.Stdout, cmd.Stderr = r.stack.Env(), out, out
	return cmd, log, cmd.Start()
}

// interruptIn starts rotate-ca, and waits until the output contains "text". Then it sends the signal to rotate-ca.
func (r *rotation) interruptIn(ctx context.Context, text string, signal syscall.Signal) error {
	cmd, log, err := r.rotate(ctx)
	if err != nil {
		return err
	}
	for {
		output, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		if bytes.Contains(output, []byte(text)) {
			break
		}
		if bytes.Contains(output, []byte("error")) {
			return fmt.Errorf("rotate-ca: %s", output)
		}
		if err := local.Pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	r.note("%q: %v", text, signal)
	if err := cmd.Process.Signal(signal); err != nil {
		return err
	}
	_ = cmd.Wait() // the signal ends it
	return nil
}

// replaceVM kills a VM and waits until another VM has replaced it. It returns the instances afterwards.
func (r *rotation) replaceVM(ctx context.Context) ([]string, error) {
	killed, err := killVM(ctx, r.stack, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		return nil, err
	}
	found, err := r.awaitInstances(ctx, killed.String())
	r.note("the VM of %s was killed: instances %v", killed, found)
	return found, err
}

func (r *rotation) run(ctx context.Context) error {
	before, err := r.awaitInstances(ctx, "")
	if err != nil {
		return err
	}
	first, err := r.state.CABundle(ctx)
	if err != nil {
		return err
	}
	nonceKey, err := r.state.LoadNonceKey(ctx)
	if err != nil {
		return err
	}
	calling, stopCalls := context.WithCancel(ctx)
	defer stopCalls()
	var caller sync.WaitGroup
	caller.Go(func() { r.call(calling) })

	if err := r.interruptIn(ctx, "Waiting until all trust it", syscall.SIGINT); err != nil {
		return err
	}
	holder, err := lockHolder(ctx, r.stack)
	if err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if local.ServerName(n) == holder {
			if _, err := r.servers[n].kill(ctx, time.Second); err != nil {
				return err
			}
		}
	}
	r.note("the leader %s was killed", holder)
	between, err := r.replaceVM(ctx)
	if err != nil {
		return err
	}
	if err := r.interruptIn(ctx, "Waiting until none of the old CA is left", syscall.SIGKILL); err != nil {
		return err
	}
	after, err := r.replaceVM(ctx)
	if err != nil {
		return err
	}
	cmd, log, err := r.rotate(ctx)
	if err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		output, _ := os.ReadFile(log) // the error of the command matters more
		return fmt.Errorf("rotate-ca: %w: %s", err, output)
	}
	r.note("the rotation is finished")
	// The client renews its identity once more, so that it trusts only the new CA.
	if err := r.register(ctx); err != nil {
		return err
	}
	last, err := r.awaitInstances(ctx, "")
	if err != nil {
		return err
	}
	stopCalls()
	caller.Wait()
	now, err := r.state.LoadNonceKey(ctx)
	if err != nil {
		return err
	}
	if len(now.Accepted()) != 1 || now.Public().Equal(nonceKey.Public()) {
		return fmt.Errorf("%d nonce keys are accepted, want only the new one", len(now.Accepted()))
	}
	return r.check(ctx, first, [][]string{before, between, after, last})
}

// check checks the result of the test. Exactly the two killed VMs were replaced. No call failed because of a
// certificate. Only the new CA is trusted.
func (r *rotation) check(ctx context.Context, first []*x509.Certificate, instances [][]string) error {
	var errs []error
	for i, want := range []int{rotationSize - 1, rotationSize - 1, rotationSize} {
		kept := 0
		for _, id := range instances[i] {
			if slices.Contains(instances[i+1], id) {
				kept++
			}
		}
		if kept != want {
			errs = append(errs, fmt.Errorf("instances %v became %v: %d were kept, want %d", instances[i],
				instances[i+1], kept, want))
		}
	}
	bundle, err := r.state.CABundle(ctx)
	if err != nil {
		return err
	}
	if len(bundle) != 1 || bundle[0].Equal(first[0]) {
		errs = append(errs, fmt.Errorf("the bundle has %d CAs, want only the new one", len(bundle)))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.refused) > 0 {
		errs = append(errs, fmt.Errorf("%d of %d calls were refused for a certificate, first: %s", len(r.refused),
			r.calls,
			r.refused[0]))
	}
	r.note("%d calls of the client, the longest time without an answer %.1f s", r.calls, r.outage.Seconds())
	return errors.Join(errs...)
}
