package system

import (
	"context"
	"errors"
	"flag"
	"fmt"
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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/dev/local"
)

var (
	oldFlag = flag.String("old", "", "for upgrade: directory of the binaries of an earlier version")
	oldRoot = flag.String("old-root", "", "for upgrade: the repository at that version")
)

// upgradeServers is the number of servers: 1 and 2 are of the earlier version, 3 and 4 of the current one. In a cloud
// each server has its own machine. Here the servers share one machine, so each server needs its own ports.
const upgradeServers = 4

// upgradeSize is the size of the first group. Its VMs must not be replaced.
const upgradeSize = 3

// TestUpgrade upgrades a cluster of an earlier version part by part: servers, agents, Terraform provider. It downgrades
// where docs/how-to/upgrade.md permits that, and upgrades again. The bucket comes from the earlier version, and so do
// all programs at first. During the test, another group is scaled up and down. No VM of the first group may be
// replaced.
func TestUpgrade(t *testing.T) {
	if *oldFlag == "" {
		t.Log("run by scripts/test.sh upgrade, which builds the binaries")
		return
	}
	u := &upgrade{bin: t.TempDir()}
	for dir, path := range map[*string]string{&u.old: *oldFlag, &u.current: *binFlag} {
		abs, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		*dir = abs
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 8*time.Minute, errors.New("timeout after 8 minutes"))
	defer cancel()
	err := local.WithStack(ctx, local.Trial{Name: "upgrade", Root: ".", Bin: u.bin, Servers: upgradeServers,
		Keep: *keepFlag}, func(stack *local.Stack) error {
		u.stack = stack
		return u.run(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// upgrade is one run of TestUpgrade.
type upgrade struct {
	stack *local.Stack
	// bin is the directory from which the stack runs programs. Each program in it is a link to the program in one of
	// the directories old (the earlier version) and current.
	bin, old, current string
	tf                *local.Terraform
	operator          *local.Operator
	identity          string // directory
	servers           [upgradeServers + 1]*local.Process
	vms               []local.VM // of the group that must stay
}

func (u *upgrade) run(ctx context.Context) error {
	if err := u.start(ctx); err != nil {
		return fmt.Errorf("start the earlier version: %w", err)
	}
	defer u.operator.Close()
	loading, stop := context.WithCancel(ctx)
	var load sync.WaitGroup
	defer load.Wait()
	defer stop()
	load.Go(func() { u.operator.Watch(loading) })
	load.Go(func() { u.load(loading) })
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"nstance-admin of both versions", u.admins},
		{"a new standby comes and goes", func(ctx context.Context) error {
			return errors.Join(u.startServer(ctx, 4), u.servers[4].Stop(30*time.Second))
		}},
		{"the standby is replaced by a new server", func(ctx context.Context) error { return u.replace(ctx, 2, 4) }},
		{"the leader is replaced by a new server", func(ctx context.Context) error { return u.replace(ctx, 1, 3) }},
		{"nstance-admin of both versions", u.admins},
		{"the old nstance-admin cannot register an operator, the new one can", u.registerWithOld},
		{"agents are upgraded", func(ctx context.Context) error { return u.agents(ctx, u.current) }},
		{"agents go back", func(ctx context.Context) error { return u.agents(ctx, u.old) }},
		{"agents are upgraded again", func(ctx context.Context) error { return u.agents(ctx, u.current) }},
		{"the Terraform provider is upgraded", u.provider},
		{"the leader hands over to the other new server", u.handOver},
		{"servers go back: they refuse to lead, and new ones lead again", u.serversGoBack},
	} {
		began := time.Now()
		if err := errors.Join(step.run(ctx), u.unchanged(ctx, began)); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("upgrade: %s: %.1f s\n", step.name, time.Since(began).Seconds())
	}
	return u.checkLoad()
}

// checkLoad verifies that VMs were created and deleted during the test.
func (u *upgrade) checkLoad() error {
	calls, err := u.stack.Calls()
	if err != nil {
		return err
	}
	made := map[string]int{}
	for _, call := range calls {
		made[call.Op]++
	}
	fmt.Printf("upgrade: calls of the provider: %v\n", made)
	if made["create_done"] < 10 || made["delete_done"] < 5 {
		return fmt.Errorf("there was too little load: calls of the provider %v", made)
	}
	return nil
}

// use makes programs in bin links to the programs of a version. A program that is started afterwards has that version.
func (u *upgrade) use(version string, programs ...string) error {
	for _, program := range programs {
		link := filepath.Join(u.bin, program)
		if err := os.Symlink(filepath.Join(version, program), link+".new"); err != nil {
			return err
		}
		if err := os.Rename(link+".new", link); err != nil {
			return err
		}
	}
	return nil
}

// supervisor runs the agent of a VM again when it ends, as systemd does.
const supervisor = "#!/bin/sh\nwhile :; do %s/nstance-agent; sleep 0.2; done\n"

// start starts a cluster of the earlier version.
func (u *upgrade) start(ctx context.Context) error {
	if err := u.use(u.current, "dev-s3"); err != nil {
		return err
	}
	if err := u.use(u.old, "nstance-server", "nstance-agent", "terraform-provider-nstance"); err != nil {
		return err
	}
	boot := filepath.Join(u.stack.Dir, "agent.sh")
	if err := os.WriteFile(boot, fmt.Appendf(nil, supervisor, filepath.Join(u.stack.Dir, "bin")), 0o700); err != nil {
		return err
	}
	if _, err := u.stack.StartStore(ctx); err != nil {
		return err
	}
	if err := u.apply(ctx); err != nil {
		return err
	}
	for n := 1; n <= 2; n++ {
		if err := u.startServer(ctx, n); err != nil {
			return err
		}
	}
	u.identity = filepath.Join(u.stack.Dir, "identity")
	if out, err := u.admin(ctx, u.old, "cluster", "register-operator", "--storage-bucket", local.Bucket, "--output-dir",
		u.identity); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	var err error
	if u.operator, err = u.stack.ConnectWith(u.identity); err != nil {
		return err
	}
	if _, err := u.operator.AwaitHealthy(ctx, upgradeSize); err != nil {
		return err
	}
	u.vms, err = u.stack.VMs()
	return err
}

// apply applies the earlier version of examples/local with the provider of that version. It makes one change: the
// agents get the addresses of all servers. All servers are on one machine, so there is no leader's address that could
// move.
func (u *upgrade) apply(ctx context.Context) (err error) {
	u.stack.Root = *oldRoot
	if u.tf, err = u.stack.Terraform(*terraformFlag); err != nil {
		return err
	}
	path := filepath.Join(u.stack.Dir, "terraform", "userdata.sh.tmpl")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var registration, agent []string
	for n := range upgradeServers {
		registration = append(registration, local.Address(u.stack.Ports.Registration+10*n))
		agent = append(agent, local.Address(u.stack.Ports.Agent+10*n))
	}
	changed := strings.NewReplacer("{{ .Server.RegistrationAddr }}", strings.Join(registration, ","),
		"{{ .Server.AgentAddr }}", strings.Join(agent, ",")).Replace(string(text))
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		return err
	}
	return u.tf.Apply(ctx, u.variables())
}

func (u *upgrade) variables() map[string]string {
	vars := u.stack.Variables()
	vars["agents"] = strings.Replace(vars["agents"], filepath.Join(u.stack.Dir, "bin", "nstance-agent"),
		filepath.Join(u.stack.Dir, "agent.sh"), 1)
	vars["size"] = fmt.Sprint(upgradeSize)
	return vars
}

// startServer starts a server and waits until it is ready to lead. Servers 1 and 2 are of the earlier version.
func (u *upgrade) startServer(ctx context.Context, n int) (err error) {
	version := u.current
	if n <= 2 {
		version = u.old
	}
	if err := u.use(version, "nstance-server"); err != nil {
		return err
	}
	if u.servers[n], err = u.stack.StartServer(ctx, n); err != nil {
		return err
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", u.servers[n].PID))
	if err != nil || filepath.Dir(exe) != version {
		return fmt.Errorf("%s runs %s, want the one in %s: %w", local.ServerName(n), exe, version, err)
	}
	return u.stack.AwaitReady(ctx, u.servers[n], n)
}

// load changes the size of another group until ctx ends, which creates and deletes VMs all the time. A server of the
// earlier version does not know patches, so it gets the change from its own nstance-admin.
func (u *upgrade) load(ctx context.Context) {
	rng := rand.New(rand.NewPCG(1, 2))
	const group = "load"
	for local.Pause(ctx, time.Second) == nil {
		size := rng.Uint32N(3)
		// A failure does not matter: there may be no leader at the moment.
		_, err := u.operator.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{Group: group,
			Patch: fmt.Sprintf(`{"template": "worker", "size": %d}`, size)})
		if status.Code(err) != codes.InvalidArgument {
			continue
		}
		if _, err := u.admin(ctx, u.old, "group", "scale", group, fmt.Sprint(size)); err != nil {
			_, _ = u.admin(ctx, u.old, "group", "create", group, "--template", "worker", "--size", fmt.Sprint(size))
		}
	}
}

// admin runs nstance-admin of a version.
func (u *upgrade) admin(ctx context.Context, version string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(version, "nstance-admin"), args...)
	cmd.Env = append(u.stack.Env(), "NSTANCE_ADMIN_SERVERS="+u.stack.AdminServers(),
		"NSTANCE_ADMIN_IDENTITY_DIR="+u.identity)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s of %s: %w", strings.Join(cmd.Args, " "), version, err)
	}
	return string(out), err
}

// admins runs commands of nstance-admin of both versions.
func (u *upgrade) admins(ctx context.Context) error {
	for _, version := range []string{u.old, u.current} {
		for _, args := range [][]string{{"group", "list"}, {"instance", "list"}, {"config", "status"},
			{"instance", "show", u.vms[0].Instance.String()}} {
			// A call fails while no server leads, so a failed call is repeated.
			var out string
			var err error
			for range 10 {
				if out, err = u.admin(ctx, version, args...); err == nil {
					break
				}
				if ended := local.Pause(ctx, 500*time.Millisecond); ended != nil {
					return ended
				}
			}
			if err != nil {
				return fmt.Errorf("%w\n%s", err, out)
			}
			if args[0] == "instance" && !strings.Contains(out, u.vms[0].Instance.String()) {
				return fmt.Errorf("%v of %s does not name %s:\n%s", args, version, u.vms[0].Instance, out)
			}
		}
	}
	return nil
}

// registerWithOld checks that the current nstance-admin can register an operator. The old nstance-admin must refuse to
// register one, because it cannot read the signed cluster/ca.crt.
func (u *upgrade) registerWithOld(ctx context.Context) error {
	const refusal = "read cluster/ca.crt"
	out, err := u.admin(ctx, u.old, "cluster", "register-operator", "--storage-bucket", local.Bucket, "--output-dir",
		filepath.Join(u.stack.Dir, "late-identity"))
	if err == nil || !strings.Contains(out, refusal) {
		return fmt.Errorf("the old nstance-admin says %q, %w; want an error with %q", out, err, refusal)
	}
	if out, err := u.admin(ctx, u.current, "cluster", "register-operator", "--storage-bucket", local.Bucket,
		"--output-dir", filepath.Join(u.stack.Dir, "new-identity")); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// replace starts the server "next", waits until it is ready, and stops the server "gone".
func (u *upgrade) replace(ctx context.Context, old, next int) error {
	if err := u.startServer(ctx, next); err != nil {
		return err
	}
	return u.servers[old].Stop(30 * time.Second)
}

// agents makes all VMs use the nstance-agent of a version. It restarts the agents one after the other.
func (u *upgrade) agents(ctx context.Context, version string) error {
	if err := u.use(version, "nstance-agent"); err != nil {
		return err
	}
	wanted, err := filepath.EvalSymlinks(filepath.Join(version, "nstance-agent"))
	if err != nil {
		return err
	}
	for {
		agents, err := agentsOf(ctx, u.stack)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(agents, func(f local.Found) bool {
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", f.PID))
			return err == nil && exe != wanted
		})
		if at < 0 {
			return nil
		}
		// SIGINT ends the agent but not its VM. A restart of the agent's systemd unit has the same effect.
		_ = syscall.Kill(agents[at].PID, syscall.SIGINT) // it may have ended
		if err := local.Pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// provider applies the current version of examples/local with the new Terraform provider. This apply must not change
// the shard's configuration. Afterwards, the old provider must refuse to apply its own version of the example, because
// it cannot read the new state.
func (u *upgrade) provider(ctx context.Context) error {
	before, err := u.stack.ConfigWritten()
	if err != nil {
		return err
	}
	if err := u.applyExample(ctx, ".", u.current); err != nil {
		return err
	}
	after, err := u.stack.ConfigWritten()
	if err != nil {
		return err
	}
	if !after.Equal(before) {
		return errors.New("the new provider wrote another configuration of the shard")
	}
	if err := u.applyExample(ctx, *oldRoot, u.old); err == nil {
		return errors.New("the old provider applies a state of the new one, contrary to docs/how-to/upgrade.md")
	}
	return u.applyExample(ctx, ".", u.current)
}

// applyExample applies examples/local of the repository root with the provider of a version. It leaves the boot script,
// which start changed.
func (u *upgrade) applyExample(ctx context.Context, root, version string) error {
	if err := u.use(version, "terraform-provider-nstance"); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(root, "examples", "local", "*.tf"))
	if err != nil {
		return err
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(u.stack.Dir, "terraform", filepath.Base(path)), text, 0o600); err != nil {
			return err
		}
	}
	return u.tf.Apply(ctx, u.variables())
}

// handOver stops the leader, which is a server of the current version, so that another server leads. It then starts the
// stopped server again.
func (u *upgrade) handOver(ctx context.Context) error {
	holder, err := lockHolder(ctx, u.stack)
	if err != nil {
		return err
	}
	for n := 3; n <= upgradeServers; n++ {
		if holder == local.ServerName(n) {
			if err := u.servers[n].Stop(30 * time.Second); err != nil {
				return err
			}
			return u.startServer(ctx, n)
		}
	}
	return fmt.Errorf("the lock names %s, want a new server", holder)
}

// serversGoBack stops the new servers and starts an old server. The old server must not lead, because it cannot read
// the lock. The VMs must continue to run. Then the new servers lead again.
func (u *upgrade) serversGoBack(ctx context.Context) error {
	for n := 3; n <= upgradeServers; n++ {
		if err := u.servers[n].Stop(30 * time.Second); err != nil {
			return err
		}
	}
	if err := u.use(u.old, "nstance-server"); err != nil {
		return err
	}
	old, err := u.stack.StartServer(ctx, 1)
	if err != nil {
		return err
	}
	const refusal = "written by a newer version of nstance"
	for {
		log, err := os.ReadFile(old.Log)
		if err != nil {
			return err
		}
		if strings.Contains(string(log), refusal) {
			break
		}
		if err := local.Pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("the old server does not log %q: %w", refusal, err)
		}
	}
	if holder, err := lockHolder(ctx, u.stack); err != nil || holder == local.ServerName(1) {
		return fmt.Errorf("the lock names %q, %w", holder, err)
	}
	for n := 3; n <= upgradeServers; n++ {
		if err := u.startServer(ctx, n); err != nil {
			return err
		}
	}
	return old.Stop(30 * time.Second)
}

// unchanged waits until every agent of the first group has reported since the given time, and checks that the group
// has the same VMs as at the start.
func (u *upgrade) unchanged(ctx context.Context, since time.Time) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("timeout after a minute"))
	defer cancel()
	for {
		instances, err := u.operator.Instances(ctx)
		if err != nil {
			return err
		}
		missing := ""
		found := 0
		for _, i := range instances {
			if i.GetGroup() != group || i.GetState() == "deleted" {
				continue
			}
			found++
			if !slices.ContainsFunc(u.vms, func(vm local.VM) bool {
				return vm.Instance.String() == i.GetInstanceId()
			}) {
				return fmt.Errorf("the group has %s, which was not there at the start", i.GetInstanceId())
			}
			if !local.Healthy(i) || !i.GetLastReportAt().AsTime().After(since) {
				missing = fmt.Sprintf("%s: state %s, health %s %s, last report %s", i.GetInstanceId(), i.GetState(),
					i.GetHealth(), i.GetHealthMessage(), i.GetLastReportAt().AsTime().Format(time.TimeOnly))
			}
		}
		if missing == "" && found == len(u.vms) {
			break
		}
		if err := local.Pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d VMs are healthy, and %q: %w", found, len(u.vms), missing, err)
		}
	}
	for _, vm := range u.vms {
		now, err := u.stack.VM(vm.Instance)
		if err != nil {
			return err
		}
		if !now.DeletedAt.IsZero() || now.PID != vm.PID {
			return fmt.Errorf("the VM of %s is another one: %+v, want %+v", vm.Instance, now, vm)
		}
	}
	return nil
}
