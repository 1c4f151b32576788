package agentapi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/internal/agent"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
	"github.com/nstance-kit/nstance/services/internal/proof/foldertest"
)

// diskAgent is a real agent with received files on a small file system of their own.
type diskAgent struct {
	*client
	dir  string // of received files
	stop func()
}

type noMachine struct{}

func (noMachine) Facts() agent.Facts { return agent.Facts{} }

func (noMachine) Sample(context.Context) (*nstancev1.Metrics, time.Duration) { return nil, time.Hour }

// newDiskAgent starts an agent whose files are on a tmpfs of 64 KiB, and waits until it has them.
func newDiskAgent(t *testing.T, w *testLeader) *diskAgent {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); errors.Is(err, syscall.EPERM) {
		t.Skip("mounting a file system needs root")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	w.interval.Store(int64(100 * time.Millisecond))
	w.Clock.Advance(time.Since(w.Clock.Now())) // a real agent verifies certificates by the machine's clock
	a := &diskAgent{client: w.agent(t), dir: filepath.Join(dir, "recv")}
	a.start(t)
	t.Cleanup(func() { a.stop() })
	a.await(t, "r1", "worker")
	return a
}

// start starts the agent's process.
func (a *diskAgent) start(t *testing.T) {
	t.Helper()
	files, err := folder.Open(a.dir, 0o750)
	if err != nil {
		t.Fatal(err)
	}
	key, err := authority.EncodePrivateKey(a.key)
	if err != nil {
		t.Fatal(err)
	}
	var own foldertest.Memory
	for name, content := range map[string][]byte{"identity.key": key, "ca.crt": a.w.Issuer().Bundle,
		"identity.crt": authority.EncodeCertificate(a.cert.Leaf)} {
		if err := own.Write(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	keys, err := folder.Open(filepath.Join(filepath.Dir(a.dir), "..", filepath.Base(filepath.Dir(a.dir))+"-keys"),
		0o700)
	if err != nil {
		t.Fatal(err)
	}
	client := agent.New(agent.Options{ID: a.id, RegistrationAddrs: []string{a.w.addr}, AgentAddrs: []string{a.w.addr},
		Identity: &own, Keys: keys, Files: files, IdentityMode: 0o600, KeysMode: 0o640, FilesMode: 0o640,
		Machine: noMachine{}, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- client.Run(ctx) }()
	a.stop = func() {
		cancel()
		if done != nil {
			<-done
			done = nil
		}
	}
}

// await waits until the agent reports a configuration and every file has its content. Meanwhile, the server's clock
// runs fast, so that the server repeats what it repeats after a while.
func (a *diskAgent) await(t *testing.T, hash, role string) {
	t.Helper()
	if err := a.push(); err != nil {
		t.Fatal(err)
	}
	problem := "no report"
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if problem = a.problem(hash, role); problem == "" {
			return
		}
		a.w.Clock.Advance(10 * time.Second)
	}
	t.Errorf("%s: %s", hash, problem)
}

// problem returns what is wrong with the files on the disk or in the agent's last report.
func (a *diskAgent) problem(hash, role string) string {
	view, ok := a.w.State.Instance(a.id)
	if !ok || view.Report.RuntimeHash != hash || !view.Report.Healthy {
		return fmt.Sprintf("the agent reports %q, healthy %v: %s", view.Report.RuntimeHash, view.Report.Healthy,
			view.Report.Message)
	}
	for _, f := range view.Report.Files {
		if f.Error != "" {
			return fmt.Sprintf("the agent reports %s: %s", f.Name, f.Error)
		}
	}
	for name, want := range map[string]string{"node.env": "ROLE=" + role + "\n", "secret.key": "hunter2",
		"node.crt": "-----BEGIN CERTIFICATE-----"} {
		if got, err := os.ReadFile(filepath.Join(a.dir, name)); err != nil || !strings.HasPrefix(string(got), want) {
			return fmt.Sprintf("%s has %q (%v), and the agent reports no error", name, got, err)
		}
	}
	return ""
}

// change gives the group another configuration, which changes node.env, and sends it.
func (a *diskAgent) change(t *testing.T, hash, role string) {
	t.Helper()
	a.w.group.RuntimeHash, a.w.group.Vars = hash, map[string]string{"role": role}
	a.w.Configure(a.w.group)
	if err := a.push(); err != nil {
		t.Fatal(err)
	}
}

// awaitUnhealthy waits until the agent reports that it is unhealthy.
func (a *diskAgent) awaitUnhealthy(t *testing.T, why string) {
	t.Helper()
	eventually(t, "the agent reports "+why, func() bool {
		view, _ := a.w.State.Instance(a.id)
		return !view.Report.Healthy && strings.Contains(view.Report.Message, why)
	})
}

// TestFilesAfterAFaultOfTheDisk checks that an agent gets files that its disk refused for a while: because it was full,
// and because it was mounted for reading only.
func TestFilesAfterAFaultOfTheDisk(t *testing.T) {
	w := newTestLeader(t)
	a := newDiskAgent(t, w)
	filler := filepath.Join(a.dir, "..", "filler")
	err := os.WriteFile(filler, make([]byte, 1<<20), 0o600)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%v, want a full disk", err)
	}
	a.change(t, "r2", "second")
	a.awaitUnhealthy(t, "no space left")
	// Another change follows before the space is freed.
	a.change(t, "r3", "third")
	a.w.Clock.Advance(time.Minute)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	a.await(t, "r3", "third")

	mount := filepath.Dir(a.dir)
	if err := syscall.Mount("", mount, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	a.change(t, "r4", "fourth")
	a.awaitUnhealthy(t, "read-only")
	a.stop()
	a.start(t) // an agent starts on such a disk too
	a.awaitUnhealthy(t, "read-only")
	if err := syscall.Mount("", mount, "", syscall.MS_REMOUNT, "size=64k"); err != nil {
		t.Fatal(err)
	}
	a.await(t, "r4", "fourth")
}

// TestFilesThatSomebodyChanged checks that edited and deleted files are restored: those of every kind, under the leader
// that sent them and under its successor, and also if the edit keeps size and modification time.
func TestFilesThatSomebodyChanged(t *testing.T) {
	w := newTestLeader(t)
	a := newDiskAgent(t, w)
	edits := map[string]func(name string) error{
		"deleted": os.Remove,
		"edited": func(name string) error {
			info, err := os.Stat(name)
			if err != nil {
				return err
			}
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			text[len(text)/2] ^= 1
			return errors.Join(os.WriteFile(name, text, 0o600), os.Chtimes(name, info.ModTime(), info.ModTime()))
		},
	}
	for how, edit := range edits {
		for _, name := range []string{"node.env", "secret.key", "node.crt"} {
			t.Run(how+" "+name, func(t *testing.T) {
				before, err := os.ReadFile(filepath.Join(a.dir, name))
				if err != nil {
					t.Fatal(err)
				}
				a.stop()
				if err := edit(filepath.Join(a.dir, name)); err != nil {
					t.Fatal(err)
				}
				leader := *w.leader.Load()
				w.leader.Store(&leader)
				a.start(t)
				for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
					after, err := os.ReadFile(filepath.Join(a.dir, name))
					fixed := err == nil && (string(after) == string(before) || name == "node.crt" &&
						a.problem("r1", "worker") == "" && strings.Contains(string(after), "\n-----END"))
					if fixed {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("it is still %q (%v)", after, err)
					}
					w.Clock.Advance(10 * time.Second)
				}
				a.await(t, "r1", "worker")
			})
		}
	}
}
