package system

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/dev/local"
)

// TestDebugStory runs every command of docs/how-to/debug.md against real servers and agents: after a VM was killed, and
// after both servers were killed.
func TestDebugStory(t *testing.T) {
	runShard(t, "scripts/debug.sh", local.Trial{}, func(ctx context.Context, stack *local.Stack) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("timeout after 5 minutes"))
		defer cancel()
		r := &refused{stack: stack}
		if err := r.start(ctx); err != nil {
			return err
		}
		defer r.operator.Close()
		return r.debug(ctx)
	})
}

// expectation is what one command of the page prints, or says on standard error.
type expectation struct {
	command string // how it begins
	fails   bool
	texts   []string
}

func (r *refused) debug(ctx context.Context) error {
	page, err := os.ReadFile("docs/how-to/debug.md")
	if err != nil {
		return err
	}
	lost, noLeader, ok := strings.Cut(string(page), "\n## The shard has no leader\n")
	if !ok {
		return errors.New("the page has no section about a shard without a leader")
	}
	gone, err := killVM(ctx, r.stack, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		return err
	}
	if err := awaitReplaced(ctx, r.operator, gone, refusedSize); err != nil {
		return err
	}
	id := gone.String()
	if err := r.runPage(ctx, lost, id, []expectation{
		{"status", false, []string{local.Shard, "server-"}},
		{"events --since 1h --shard dev-1 --kind", false, []string{id, "instance pending deletion", "gone"}},
		{"events --since 1h --shard dev-1 --instance", false, []string{"instance created", "instance registered"}},
		{"instance describe", false, []string{id, "Deleted:"}},
		{"explain group", false, []string{"Planned again:", "well"}},
		{"group wait", false, []string{"2 healthy"}},
		{"doctor", false, []string{"holds the lock in term", "opens the CA's key", "agrees with the bucket's"}},
	}); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if err := r.servers[n].Kill(); err != nil {
			return err
		}
	}
	return r.runPage(ctx, noLeader, id, []expectation{
		{"status", true, []string{"connection refused"}},
		{"doctor", true, []string{"closed", "firewall", "operator port of server-"}},
	})
}

// runPage runs the commands in the blocks of shell code of a page, which must be the expected ones in that order.
func (r *refused) runPage(ctx context.Context, page, instance string, want []expectation) error {
	var commands []string
	for n, block := range strings.Split(page, "```") {
		if code, ok := strings.CutPrefix(block, "sh\n"); n%2 == 1 && ok {
			commands = append(commands, strings.Split(strings.TrimSpace(code), "\n")...)
		}
	}
	if len(commands) != len(want) {
		return fmt.Errorf("the page has %d commands, want %d: %q", len(commands), len(want), commands)
	}
	for n, command := range commands {
		cmd := exec.CommandContext(ctx, "sh", "-c", command)
		cmd.Env = append(r.stack.Env(), "PATH="+r.stack.Bin+":"+os.Getenv("PATH"), "INSTANCE="+instance,
			"NSTANCE_ADMIN_SERVERS="+r.stack.AdminServers(), "NSTANCE_ADMIN_IDENTITY_DIR="+r.file("identity"))
		output, err := cmd.CombinedOutput()
		fmt.Printf("$ %s\n%s\n", command, output)
		if !strings.HasPrefix(command, "nstance-admin "+want[n].command) || (err != nil) != want[n].fails {
			return fmt.Errorf("%s: %w: want %q, failing: %t", command, err, want[n].command, want[n].fails)
		}
		for _, text := range want[n].texts {
			if !strings.Contains(string(output), text) {
				return fmt.Errorf("%s: %q is not in its output", command, text)
			}
		}
	}
	return nil
}
