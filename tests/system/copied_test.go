package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// TestCopiedBucket stops the servers of a shard, copies the shard's bucket to another object store, and starts a server
// that uses the copy. The bucket has the same name in both stores. The server must not lead, and no VM may be lost.
// After `nstance-admin cluster restore` it leads, and an orphan waits for a confirmation.
func TestCopiedBucket(t *testing.T) {
	copied := new(copiedBucket)
	runShard(t, "scripts/test.sh copied", local.Trial{Environment: copied.environment},
		func(ctx context.Context, stack *local.Stack) error {
			ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, errors.New("timeout after 3 minutes"))
			defer cancel()
			return copied.run(ctx, stack)
		})
}

// copiedBucket is one run of TestCopiedBucket.
type copiedBucket struct {
	endpoint string // of the store with the copy; the second server uses it
	dir      string // of the objects in the copy
	stack    *local.Stack
}

func (c *copiedBucket) environment(name string) []string {
	if name != local.ServerName(2) {
		return nil
	}
	return []string{"AWS_ENDPOINT_URL=" + c.endpoint}
}

const copiedSize = 3

func (c *copiedBucket) run(ctx context.Context, stack *local.Stack) error {
	c.stack = stack
	if _, err := stack.StartStore(ctx); err != nil {
		return err
	}
	if err := stack.PutConfig(ctx, func(shard *config.Shard) { useShortTimes(shard, copiedSize) }); err != nil {
		return err
	}
	original, err := stack.StartServer(ctx, 1)
	if err != nil {
		return err
	}
	if _, err := stack.AwaitLine(ctx, "serving as leader", 0); err != nil {
		return err
	}
	operator, err := stack.Connect(ctx)
	if err != nil {
		return err
	}
	defer operator.Close()
	healthy, err := operator.AwaitHealthy(ctx, copiedSize)
	if err != nil {
		return err
	}
	if err := original.Kill(); err != nil {
		return err
	}
	stop, err := c.copyBucket(ctx)
	if err != nil {
		return err
	}
	defer stop()
	// In the copy, the record of one VM is missing, as after a restore of an older state.
	orphan := healthy[0].GetInstanceId()
	records := filepath.Join(c.dir, filepath.FromSlash(keys.InstancePrefix(local.Shard)))
	if err := removeRecord(records, orphan); err != nil {
		return err
	}
	if _, err := stack.StartServer(ctx, 2); err != nil {
		return err
	}
	if err := local.Pause(ctx, 4*lease); err != nil { // the copied lock has expired long since
		return err
	}
	if err := c.awaitHealth(ctx, "may be a copy"); err != nil {
		return err
	}
	if agents, err := agentsOf(ctx, stack); err != nil || len(agents) != copiedSize {
		return fmt.Errorf("%d of %d agents run: %w", len(agents), copiedSize, err)
	}
	fmt.Println("copied: the server with the copy does not lead, and all VMs run")

	if err := c.restore(ctx); err != nil {
		return err
	}
	if err := c.awaitHealth(ctx, "ok"); err != nil {
		return err
	}
	if _, err := operator.AwaitHealthy(ctx, copiedSize); err != nil { // with a replacement for the orphan
		return err
	}
	if err := c.awaitOrphanAlert(ctx, operator); err != nil {
		return err
	}
	if err := local.Pause(ctx, 5*time.Second); err != nil { // more than two collections
		return err
	}
	if agents, err := agentsOf(ctx, stack); err != nil || len(agents) != copiedSize+1 {
		return fmt.Errorf("%d of %d agents run before the confirmation: %w", len(agents), copiedSize+1, err)
	}
	fmt.Println("copied: after the restore the server leads, and one orphan waits")
	return c.confirm(ctx)
}

func removeRecord(dir, instance string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		body, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		if strings.Contains(string(body), instance) {
			return os.Remove(filepath.Join(dir, entry.Name()))
		}
	}
	return fmt.Errorf("%s has no record", instance)
}

// copyBucket copies the objects and starts another store that has a bucket of the same name with the copies.
func (c *copiedBucket) copyBucket(ctx context.Context) (stop func(), err error) {
	c.dir = filepath.Join(c.stack.Dir, "copy")
	if err := os.CopyFS(c.dir, os.DirFS(c.stack.StoreDir())); err != nil {
		return nil, err
	}
	ports, release, err := local.ReservePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	address := local.Address(ports.Store)
	c.endpoint = "http://" + address
	release()
	cmd := exec.CommandContext(ctx, filepath.Join(c.stack.Bin, "dev-s3"), "--addr", address, "--dir", c.dir, "--bucket",
		local.Bucket)
	cmd.Env = c.stack.Env()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}, nil
}

// restore runs `nstance-admin cluster restore` on the copy.
func (c *copiedBucket) restore(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.stack.Bin, "nstance-admin"), "cluster", "restore",
		"--storage-bucket", local.Bucket, "--yes")
	cmd.Env = append(c.stack.Env(), "AWS_ENDPOINT_URL="+c.endpoint)
	out, err := cmd.CombinedOutput()
	fmt.Printf("%s", out)
	return err
}

// awaitHealth waits until the health page of the second server has the given text.
func (c *copiedBucket) awaitHealth(ctx context.Context, text string) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.stack.URL(2, "/health"), nil)
		if err != nil {
			return err
		}
		body := ""
		if resp, err := http.DefaultClient.Do(req); err == nil {
			all, _ := io.ReadAll(resp.Body)
			body = string(all)
			_ = resp.Body.Close()
		}
		if strings.Contains(body, text) {
			return nil
		}
		if err := local.Pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("the second server says %q, not %q: %w", body, text, err)
		}
	}
}

func (c *copiedBucket) awaitOrphanAlert(ctx context.Context, operator *local.Operator) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go operator.Watch(ctx)
	for {
		_, alerts := operator.Events()
		for _, alert := range alerts {
			if alert.GetKind() == "orphans" && !alert.GetResolved() {
				return nil
			}
		}
		if err := local.Pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("no alert about orphans: %w", err)
		}
	}
}

// confirm confirms the orphan with SIGUSR1, and waits for its end.
func (c *copiedBucket) confirm(ctx context.Context) error {
	running, err := local.Find(ctx, c.stack.Dir)
	if err != nil {
		return err
	}
	for _, p := range running {
		if p.Program() == "nstance-server" {
			if err := syscall.Kill(p.PID, syscall.SIGUSR1); err != nil {
				return err
			}
		}
	}
	for {
		agents, err := agentsOf(ctx, c.stack)
		if err == nil && len(agents) == copiedSize {
			return nil
		}
		if err := local.Pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%d agents run after the confirmation: %w", len(agents), err)
		}
	}
}
