// Package scenario checks what a shard does on every cloud: its leader answers at its address, its agents register, and
// lost VMs are replaced. The tests of each cloud's stacks call the methods of [Shard].
package scenario

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// Soon limits operations that a machine of a fake cloud completes within seconds. Detecting a silent death by keepalive
// takes up to 30 s.
const Soon = 2 * time.Minute

// notice is the time from the announcement that a Spot VM will end until the VM ends. AWS gives two minutes, Google
// Cloud gives 30 seconds.
const notice = 20 * time.Second

// Cloud is the cloud of one shard. Its methods name VMs and servers by IDs that the cloud never uses twice.
type Cloud interface {
	// Workers returns the IDs of the shard's VMs that are pending or running. Servers returns the IDs of the machines
	// on which the shard's servers run.
	Workers() []string
	Servers() []string
	// Kill ends a VM without notice. Interrupt announces that a Spot VM will end, and ends the VM after the time
	// "after".
	Kill(id string)
	Interrupt(id string, after time.Duration) error
	// Maintain announces maintenance that terminates a VM at the given time.
	Maintain(id string, begins time.Time)
	// Dial connects from a host in the shard's network.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// Shard is a shard of an applied stack.
type Shard struct {
	Cloud

	LeaderIP string
	State    *clusterstate.State
}

// Healthy waits until the leader answers a client in the shard's network at the shard's fixed address.
func (s *Shard) Healthy(t *testing.T) {
	t.Helper()
	lab.Eventually(t, Soon, "the leader answers at "+s.LeaderIP, func() string {
		if len(s.Servers()) == 0 {
			return "there is no server"
		}
		return s.Health(s.Dial)
	})
}

// Health requests the page /health at the shard's fixed address, where the leader answers. It returns "" if the leader
// is healthy, and otherwise what is wrong.
func (s *Shard) Health(dial func(ctx context.Context, network, address string) (net.Conn, error)) string {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: dial}}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet,
		"http://"+net.JoinHostPort(s.LeaderIP, "8990")+"/health", nil)
	if err != nil {
		return err.Error()
	}
	resp, err := client.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Sprintf("%d %s %v", resp.StatusCode, body, err)
	}
	return ""
}

// Settled waits until the shard has the given number of VMs, each with a registered agent, and none of the VMs in
// "gone".
func (s *Shard) Settled(t *testing.T, size int, replaced []string) {
	t.Helper()
	lab.Eventually(t, Soon, fmt.Sprintf("%d registered VMs without %v", size, replaced), func() string {
		workers := s.Workers()
		if len(workers) != size {
			return fmt.Sprintf("VMs %v", workers)
		}
		registered := map[string]bool{}
		if err := s.State.LoadInstances(t.Context(), func(instance record.Instance, _ objstore.Token) {
			registered[instance.ProviderID] = instance.State == record.Registered
		}); err != nil {
			return err.Error()
		}
		for _, worker := range workers {
			if slices.Contains(replaced, worker) {
				return worker + " is still there"
			}
			if !registered[worker] {
				return worker + " has not registered"
			}
		}
		return ""
	})
	if err := s.State.LoadInstances(t.Context(), func(instance record.Instance, _ objstore.Token) {
		if instance.State == record.Registered {
			t.Logf("%s: %.1f s from the create call to the registration", instance.ProviderID,
				instance.RegisteredAt.Sub(instance.CreatedAt).Seconds())
		}
	}); err != nil {
		t.Error(err)
	}
}

// ReplacesKilled ends a VM without notice and waits for its replacement.
func (s *Shard) ReplacesKilled(t *testing.T, size int) {
	t.Helper()
	victim := s.Workers()[0]
	s.Kill(victim)
	s.Settled(t, size, []string{victim})
}

// Rolls changes the arguments of a group's VMs and applies the change. The plan must mention the group, and the apply
// must replace the group's VMs.
func (s *Shard) Rolls(t *testing.T, stack *lab.Stack, vars map[string]any, args string) {
	t.Helper()
	old := s.Workers()
	vars["worker_args"] = args
	if code, output := stack.Plan(t); code != 2 || !strings.Contains(output, "default/workers") {
		t.Errorf("other arguments: exit code %d, want 2 and the name of the group that rolls:\n%s", code, output)
	}
	stack.ApplyPlan(t)
	s.Settled(t, len(old), old)
	s.drained(t, old)
}

// hookTime is how long the drain hook of [Hooked] runs.
const hookTime = 15 * time.Second

// Hooked returns a configuration that gives the VMs of the examples a drain hook. Without the hook's end, a drain lasts
// for ten minutes.
func Hooked() map[string]any {
	return map[string]any{
		"templates": map[string]any{"worker": map[string]any{
			"drain": map[string]any{"exec": []string{"/bin/sleep", fmt.Sprint(hookTime.Seconds())}}}},
		"groups": map[string]any{"default": map[string]any{"workers": map[string]any{"drain_timeout": "10m"}}},
	}
}

// drained checks that VMs with the drain hook of [Hooked] were terminated when their hook had ended.
func (s *Shard) drained(t *testing.T, old []string) {
	t.Helper()
	var took []time.Duration
	lab.Eventually(t, Soon, "the records of the replaced VMs are tombstones", func() string {
		took = nil
		if err := s.State.LoadInstances(t.Context(), func(instance record.Instance, _ objstore.Token) {
			if slices.Contains(old, instance.ProviderID) && instance.State == record.Deleted {
				took = append(took, instance.DeletedAt.Sub(instance.DeletingAt))
			}
		}); err != nil {
			return err.Error()
		}
		if len(took) < len(old) {
			return fmt.Sprintf("%d of %d", len(took), len(old))
		}
		return ""
	})
	t.Logf("from the decision to the end of the VMs: %v", took)
	for _, one := range took {
		if one < hookTime || one > hookTime+time.Minute {
			t.Errorf("a VM ended %s after the decision, its drain hook runs for %s", one, hookTime)
		}
	}
}

// ReplacesInterrupted makes the cloud announce that it takes a Spot VM away. The replacement must start while that VM
// runs.
func (s *Shard) ReplacesInterrupted(t *testing.T, size int) {
	t.Helper()
	doomed := s.Workers()[0]
	if err := s.Interrupt(doomed, notice); err != nil {
		t.Error(err)
	}
	lab.Eventually(t, Soon, "a replacement beside "+doomed, func() string {
		if workers := s.Workers(); len(workers) != size+1 || !slices.Contains(workers, doomed) {
			return fmt.Sprintf("VMs %v", workers)
		}
		return ""
	})
	s.Settled(t, size, []string{doomed})
}

// ReplacesFirst makes the cloud announce something about a VM that must be replaced first: the VM is deleted when its
// replacement is healthy. "reason" is why.
func (s *Shard) ReplacesFirst(t *testing.T, size int, doomed, reason string) {
	t.Helper()
	var began, healthy, deleted time.Time
	lab.Eventually(t, Soon, doomed+" is deleted because "+reason, func() string {
		began, healthy, deleted = time.Time{}, time.Time{}, time.Time{}
		if err := s.State.LoadInstances(t.Context(), func(instance record.Instance, _ objstore.Token) {
			switch {
			case instance.ProviderID == doomed && strings.HasPrefix(instance.DeleteReason, reason):
				deleted = instance.DeletingAt
			case instance.State == record.Registered && instance.RegisteredAt.After(healthy):
				began, healthy = instance.CreatedAt, instance.RegisteredAt
			}
		}); err != nil {
			return err.Error()
		}
		if deleted.IsZero() {
			return fmt.Sprintf("VMs %v", s.Workers())
		}
		return ""
	})
	if !healthy.Before(deleted) {
		t.Errorf("%s is deleted at %s, its replacement was created at %s and registered at %s", doomed, deleted, began,
			healthy)
	}
	s.Settled(t, size, []string{doomed})
}

// ReplacesMaintained makes the cloud announce maintenance of a VM in an hour.
func (s *Shard) ReplacesMaintained(t *testing.T, size int) {
	t.Helper()
	doomed := s.Workers()[0]
	s.Maintain(doomed, time.Now().Add(time.Hour))
	s.ReplacesFirst(t, size, doomed, "the cloud has announced maintenance of its VM")
}

// WebCommands start a web server on port 8080 of a VM. [Shard.ReplacesUnhealthyInBalancer] later ends the web server.
var WebCommands = []string{"nohup python3 -m http.server 8080 --directory /usr/share/doc >/dev/null 2>&1 &",
	"echo $! >/run/web.pid"}

// ReplacesUnhealthyInBalancer ends the web server of a VM whose group uses the health checks of a load balancer. The VM
// must be replaced although the VM's agent reports no problem. "asked" returns how often the servers have asked the
// load balancer. "exec" runs a command on a VM.
func (s *Shard) ReplacesUnhealthyInBalancer(t *testing.T, size int, asked func() int,
	exec func(id string, command ...string) (string, error)) {
	t.Helper()
	// The leader must first learn that the load balancer calls the VM healthy. Until then, the leader waits several
	// minutes before it replaces a new VM.
	before := asked()
	lab.Eventually(t, 2*Soon, "the load balancer is asked twice", func() string {
		if n := asked(); n < before+2 {
			return fmt.Sprintf("%d times, %d before", n, before)
		}
		return ""
	})
	victim := s.Workers()[0]
	if out, err := exec(victim, "sh", "-c", "kill $(cat /run/web.pid)"); err != nil {
		t.Fatalf("end the web server: %v\n%s", err, out)
	}
	lab.Eventually(t, 2*Soon, victim+" is deleted for its load balancer", func() string {
		var reason string
		if err := s.State.LoadInstances(t.Context(), func(instance record.Instance, _ objstore.Token) {
			if instance.ProviderID == victim {
				reason = instance.DeleteReason
			}
		}); err != nil {
			return err.Error()
		}
		if !strings.Contains(reason, "it is unhealthy in load balancer web: ") {
			return fmt.Sprintf("the reason of its deletion is %q", reason)
		}
		return ""
	})
	s.Settled(t, size, []string{victim})
}

// OutlivesServers scales the servers to zero and back. Meanwhile, the VMs must continue to run. The new server must
// replace the VM that was lost while there was no server, and no other VM.
func (s *Shard) OutlivesServers(t *testing.T, stack *lab.Stack, vars map[string]any, size int) {
	t.Helper()
	vars["server_count"] = 0
	stack.Apply(t)
	lab.Eventually(t, Soon, "no server", func() string {
		if servers := s.Servers(); len(servers) > 0 {
			return fmt.Sprintf("servers %v", servers)
		}
		return ""
	})
	orphaned := s.Workers()
	if len(orphaned) != size {
		t.Errorf("without a server there are the VMs %v, want %d", orphaned, size)
	}
	s.Kill(orphaned[0])
	vars["server_count"] = 1
	stack.Apply(t)
	s.Settled(t, size, orphaned[:1])
	for _, id := range orphaned[1:] {
		if !slices.Contains(s.Workers(), id) {
			t.Errorf("the VM %s, which outlived the server, was replaced", id)
		}
	}
}

// Converged checks that a plan finds nothing to change.
func Converged(t *testing.T, stack *lab.Stack) {
	t.Helper()
	if code, output := stack.Plan(t); code != 0 {
		t.Fatalf("a plan right after apply finds changes (exit code %d):\n%s", code, output)
	}
}
