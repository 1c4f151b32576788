// Package scenario checks what a shard does on every cloud: its leader answers at its address, its agents register, and
// lost VMs are replaced. The tests of each cloud's stacks call the methods of [Shard].
package scenario

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// Soon limits operations that a machine of a fake cloud completes within seconds. Detecting a silent death by keepalive
// takes up to 30 s. In a real cloud, [Shard.Within] is the limit instead.
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
	// Kill ends a VM without notice.
	Kill(id string)
}

// Fake is what only a fake cloud can do.
type Fake interface {
	// Interrupt announces that a Spot VM will end, and ends the VM after the time "after".
	Interrupt(id string, after time.Duration) error
	// Maintain announces maintenance that terminates a VM at the given time.
	Maintain(id string, begins time.Time)
	// Dial connects from a host in the shard's network.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// Shard is a shard of an applied stack.
type Shard struct {
	Cloud
	Fake // nil in a real cloud

	Name     string // of the shard; only [Shard.FailsOver] needs it
	LeaderIP string
	State    *clusterstate.State
	// Within limits how long the shard may take for a change. Default: Soon.
	Within time.Duration
	// Measured is told how long something took, if it is not nil. "goal" may be empty.
	Measured func(what, goal string, took time.Duration)
}

func (s *Shard) within() time.Duration { return cmp.Or(s.Within, Soon) }

func (s *Shard) measured(what, goal string, took time.Duration) {
	if s.Measured != nil {
		s.Measured(what, goal, took)
	}
}

// Healthy waits until the leader answers a client in the shard's network at the shard's fixed address.
func (s *Shard) Healthy(t lab.T) {
	t.Helper()
	lab.Eventually(t, s.within(), "the leader answers at "+s.LeaderIP, func() string {
		if len(s.Servers()) == 0 {
			return "there is no server"
		}
		return s.Health(s.Dial)
	})
}

// Health requests the page /health at the shard's fixed address, where the leader answers. It returns "" if the leader
// is healthy, and otherwise what is wrong.
func (s *Shard) Health(dial func(ctx context.Context, network, address string) (net.Conn, error)) string {
	if _, err := s.get("/health", dial); err != nil {
		return err.Error()
	}
	return ""
}

// get requests a page at the shard's fixed address.
func (s *Shard) get(path string, dial func(ctx context.Context, network, address string) (net.Conn, error)) (string,
	error) {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: dial}}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet,
		"http://"+net.JoinHostPort(s.LeaderIP, "8990")+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d %s", resp.StatusCode, body)
	}
	return string(body), err
}

// Settled waits until the shard has the given number of VMs, each with a registered agent, and none of the VMs in
// "gone".
func (s *Shard) Settled(t lab.T, size int, replaced []string) {
	t.Helper()
	lab.Eventually(t, s.within(), fmt.Sprintf("%d registered VMs without %v", size, replaced), func() string {
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
func (s *Shard) ReplacesKilled(t lab.T, size int) {
	t.Helper()
	victim := s.Workers()[0]
	began := time.Now()
	s.Kill(victim)
	s.Settled(t, size, []string{victim})
	s.measured("a VM is ended → the agent of its replacement is registered", "", time.Since(began))
	var lost, created time.Time
	if err := s.State.LoadInstances(t.Context(), func(instance record.Instance, _ objstore.Token) {
		if instance.ProviderID == victim {
			lost = instance.DeletingAt
		} else if instance.CreatedAt.After(created) {
			created = instance.CreatedAt
		}
	}); err != nil {
		t.Error(err)
	}
	if !lost.IsZero() {
		s.measured("the leader sees the loss of the VM → create call", "5 ms", max(0, created.Sub(lost)))
	}
}

// Rolls changes the arguments of a group's VMs and applies the change. The plan must mention the group, and the apply
// must replace the group's VMs.
func (s *Shard) Rolls(t lab.T, stack *lab.Stack, vars map[string]any, args string) {
	t.Helper()
	old := s.Workers()
	vars["worker_args"] = args
	if code, output := stack.Plan(t); code != 2 || !strings.Contains(output, "default/workers") {
		t.Errorf("other arguments: exit code %d, want 2 and the name of the group that rolls:\n%s", code, output)
	}
	began := time.Now()
	stack.ApplyPlan(t)
	s.Settled(t, len(old), old)
	s.drained(t, old)
	s.measured(fmt.Sprintf("a change of the arguments is applied → %d VMs are replaced, with a drain hook of %s",
		len(old), hookTime), "", time.Since(began))
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
func (s *Shard) drained(t lab.T, old []string) {
	t.Helper()
	var took []time.Duration
	lab.Eventually(t, s.within(), "the records of the replaced VMs are tombstones", func() string {
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
func (s *Shard) ReplacesInterrupted(t lab.T, size int) {
	t.Helper()
	doomed := s.Workers()[0]
	if err := s.Interrupt(doomed, notice); err != nil {
		t.Error(err)
	}
	lab.Eventually(t, s.within(), "a replacement beside "+doomed, func() string {
		if workers := s.Workers(); len(workers) != size+1 || !slices.Contains(workers, doomed) {
			return fmt.Sprintf("VMs %v", workers)
		}
		return ""
	})
	s.Settled(t, size, []string{doomed})
}

// ReplacesFirst makes the cloud announce something about a VM that must be replaced first: the VM is deleted when its
// replacement is healthy. "reason" is why.
func (s *Shard) ReplacesFirst(t lab.T, size int, doomed, reason string) {
	t.Helper()
	var began, healthy, deleted time.Time
	lab.Eventually(t, s.within(), doomed+" is deleted because "+reason, func() string {
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
func (s *Shard) ReplacesMaintained(t lab.T, size int) {
	t.Helper()
	doomed := s.Workers()[0]
	s.Maintain(doomed, time.Now().Add(time.Hour))
	s.ReplacesFirst(t, size, doomed, "the cloud has announced maintenance of its VM")
}

// WebCommands start a web server on port 8080 of a VM. [Shard.ReplacesUnhealthyInBalancer] later ends the web server.
var WebCommands = []string{"nohup python3 -m http.server 8080 --directory /usr/share/doc >/dev/null 2>&1 &",
	"echo $! >/run/web.pid"}

// Preserving returns the setting of a group that preserves one failed instance.
func Preserving() map[string]any { return map[string]any{"max": 1, "for": "1h"} }

// Balancer is what [Shard.PreservesUnhealthyInBalancer] must know of a cloud.
type Balancer struct {
	// Asked and Left return how often the servers have asked the load balancer for the health of its members, and have
	// removed a member.
	Asked, Left func() int
	// Exec runs a command on a VM.
	Exec func(id string, command ...string) (string, error)
}

// deregistrationDelay is the deregistration delay of the load balancers in the examples.
const deregistrationDelay = 30 * time.Second

// PreservesUnhealthyInBalancer ends the web server of a VM whose group uses the health checks of a load balancer and is
// [Preserving]. The VM must be replaced although the VM's agent reports no problem. It must then leave the load
// balancer and keep running until the operator releases it. Its deregistration delay begins when it leaves the load
// balancer.
func (s *Shard) PreservesUnhealthyInBalancer(t lab.T, size int, operator nstancev1.OperatorServiceClient,
	b Balancer) {
	t.Helper()
	// The leader must first learn that the load balancer calls the VM healthy. Until then, the leader waits several
	// minutes before it replaces a new VM.
	before, left := b.Asked(), b.Left()
	lab.Eventually(t, 2*s.within(), "the load balancer is asked twice", func() string {
		if n := b.Asked(); n < before+2 {
			return fmt.Sprintf("%d times, %d before", n, before)
		}
		return ""
	})
	victim := s.Workers()[0]
	if out, err := b.Exec(victim, "sh", "-c", "kill $(cat /run/web.pid)"); err != nil {
		t.Fatalf("end the web server: %v\n%s", err, out)
	}
	kept := s.preserved(t, victim, "it is unhealthy in load balancer web: ", operator)
	lab.Eventually(t, s.within(), victim+" has left the load balancer", func() string {
		if n := b.Left(); n == left {
			return fmt.Sprintf("%d removals", n)
		}
		return ""
	})
	if now := s.Workers(); len(now) != size+1 || !slices.Contains(now, victim) {
		t.Errorf("the VMs are %v, want %d and %s, which is preserved", now, size, victim)
	}
	gone := s.releases(t, size, victim, operator)
	if took := gone.DeletedAt.Sub(kept.Preserved.At); took < deregistrationDelay ||
		gone.DeletedAt.Sub(gone.DeletingAt) > deregistrationDelay+15*time.Second {
		t.Errorf("the VM left the load balancer at %s, was released at %s and ended at %s, its delay is %s",
			kept.Preserved.At, gone.DeletingAt, gone.DeletedAt, deregistrationDelay)
	}
}

// preserved waits until an instance is preserved for a reason. It checks that the operator lists only this instance,
// and can read its console.
func (s *Shard) preserved(t lab.T, victim, reason string,
	operator nstancev1.OperatorServiceClient) record.Instance {
	t.Helper()
	var kept record.Instance
	lab.Eventually(t, 2*s.within(), victim+" is preserved because "+reason, func() string {
		kept = s.find(t, victim)
		if kept.Preserved == nil || !strings.Contains(kept.Preserved.Reason, reason) {
			return fmt.Sprintf("preserved: %+v, deleted: %q", kept.Preserved, kept.DeleteReason)
		}
		return ""
	})
	all, err := operator.ListInstances(t.Context(), &nstancev1.ListInstancesRequest{Preserved: true})
	if err != nil || len(all.GetInstances()) != 1 || all.GetInstances()[0].GetInstanceId() != kept.ID.String() {
		t.Errorf("the preserved instances are %v, want %s: %v", all.GetInstances(), kept.ID, err)
	}
	console, err := operator.GetInstanceConsole(t.Context(), &nstancev1.GetInstanceConsoleRequest{
		InstanceId: kept.ID.String()})
	if err != nil || console.GetText() == "" {
		t.Errorf("the console of the preserved instance is %q: %v", console.GetText(), err)
	}
	return kept
}

// find returns the record of a VM's instance. It is empty if there is none.
func (s *Shard) find(t lab.T, vm string) (found record.Instance) {
	t.Helper()
	if err := s.State.LoadInstances(t.Context(), func(instance record.Instance, _ objstore.Token) {
		if instance.ProviderID == vm {
			found = instance
		}
	}); err != nil {
		t.Error(err)
	}
	return found
}

// releases releases a preserved instance, and returns its tombstone.
func (s *Shard) releases(t lab.T, size int, vm string, operator nstancev1.OperatorServiceClient) record.Instance {
	t.Helper()
	if _, err := operator.ReleaseInstance(t.Context(), &nstancev1.ReleaseInstanceRequest{
		InstanceId: s.find(t, vm).ID.String()}); err != nil {
		t.Fatal(err)
	}
	s.Settled(t, size, []string{vm})
	var gone record.Instance
	lab.Eventually(t, s.within(), vm+" is deleted", func() string {
		if gone = s.find(t, vm); gone.State != record.Deleted {
			return string(gone.State)
		}
		return ""
	})
	return gone
}

// OutlivesServers scales the servers to zero and back. Meanwhile, the VMs must continue to run. The new server must
// replace the VM that was lost while there was no server, and no other VM.
func (s *Shard) OutlivesServers(t lab.T, stack *lab.Stack, vars map[string]any, size int) {
	t.Helper()
	vars["server_count"] = 0
	stack.Apply(t)
	lab.Eventually(t, s.within(), "no server", func() string {
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

// RollingBack returns the settings of a rollout that a failed instance halts and undoes.
func RollingBack() map[string]any {
	return map[string]any{"halt_on_failures": 1, "on_halt": "rollback"}
}

// UndoesRollout applies a configuration of the VMs with which no agent registers, and later a correct one. The function
// change sets one of them in the stack. The group must be [RollingBack] and [Preserving]. It must halt, return to its
// good configuration and say so, and keep its VMs and the one that failed.
func (s *Shard) UndoesRollout(t lab.T, stack *lab.Stack, change func(bad bool),
	operator nstancev1.OperatorServiceClient) {
	t.Helper()
	lab.Eventually(t, 2*s.within(), "the configuration is stored as good", func() string {
		stored, err := s.State.ReadRollout(t.Context(), "default", "workers")
		if err != nil || stored.Good == nil {
			return fmt.Sprintf("%+v, %v", stored, err)
		}
		return ""
	})
	old := s.Workers()
	change(true)
	stack.Apply(t)
	halted := func() (string, bool) {
		all, err := operator.ListGroups(t.Context(), &nstancev1.ListGroupsRequest{})
		if err != nil || len(all.GetGroups()) != 1 {
			return fmt.Sprintf("%v, %v", all.GetGroups(), err), false
		}
		halt := all.GetGroups()[0].GetHalted()
		return halt.GetMessage(), halt.GetRolledBackTo() != nil
	}
	lab.Eventually(t, 2*s.within(), "the group has returned to its good configuration", func() string {
		if message, back := halted(); !back {
			return "it has not: " + message
		}
		return ""
	})
	var failed string
	lab.Eventually(t, s.within(), "the VM that failed runs beside the others", func() string {
		now := s.Workers()
		if len(now) != len(old)+1 {
			return fmt.Sprintf("VMs %v, before %v", now, old)
		}
		failed = slices.DeleteFunc(now, func(id string) bool { return slices.Contains(old, id) })[0]
		return ""
	})
	s.preserved(t, failed, "its agent did not register in time", operator)
	const metric = `kind="rollout_halted",shard=`
	lab.Eventually(t, s.within(), "the alert rollout_halted", func() string {
		text, err := s.get("/metrics", s.Dial)
		for line := range strings.Lines(text) {
			if strings.Contains(line, metric) && strings.HasSuffix(line, " 1\n") {
				return ""
			}
		}
		return fmt.Sprintf("no line with %s, %v", metric, err)
	})
	if code, output := stack.Plan(t); code != 0 || !strings.Contains(output, "runs its last good configuration") ||
		!strings.Contains(output, "the group runs the configuration of") ||
		!strings.Contains(output, "its agent did not register in time") {
		t.Errorf("the plan of a group that has returned: exit code %d, want 0 and a warning:\n%s", code, output)
	}
	s.releases(t, len(old), failed, operator)
	change(false)
	stack.Apply(t)
	lab.Eventually(t, s.within(), "the halt ends", func() string {
		message, _ := halted()
		return message
	})
	if now := s.Workers(); !slices.Equal(now, old) {
		t.Errorf("the VMs are %v, want %v, as before", now, old)
	}
}

// SizeHasOneOwner changes the size of a group by hand and in the stack, whose group must have two VMs. The last one who
// changes it wins, unless the size was pinned by hand. Plan and apply say which of the two it is.
func (s *Shard) SizeHasOneOwner(t lab.T, stack *lab.Stack, vars map[string]any,
	operator nstancev1.OperatorServiceClient) {
	t.Helper()
	byHand := func(size string, pin bool) {
		t.Helper()
		if _, err := operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: "workers",
			Patch: `{"size": ` + size + `}`, MustExist: true, Pin: &pin}); err != nil {
			t.Fatal(err)
		}
	}
	inStack := func(size int, warning string) {
		t.Helper()
		vars["worker_count"] = size
		if code, output := stack.Plan(t); code != 2 || !strings.Contains(output, warning) {
			t.Errorf("size %d: exit code %d, want 2 and the warning %q:\n%s", size, code, warning, output)
		}
		stack.ApplyPlan(t)
	}
	byHand("3", false)
	s.Settled(t, 3, nil)
	inStack(1, "from 2 to 1 ends the value 3, which")
	s.Settled(t, 1, nil)
	byHand("3", true)
	s.Settled(t, 3, nil)
	inStack(2, "set 3 and pinned it. To end this override, run \"nstance-admin group reset workers")
	s.Settled(t, 3, nil)
	byHand("null", true) // as "group reset" does
	s.Settled(t, 2, nil)
}

// Converged checks that a plan finds nothing to change.
func Converged(t lab.T, stack *lab.Stack) {
	t.Helper()
	if code, output := stack.Plan(t); code != 0 {
		t.Fatalf("a plan right after apply finds changes (exit code %d):\n%s", code, output)
	}
}
