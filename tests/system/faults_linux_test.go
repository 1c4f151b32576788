package system

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/services/dev/local"
)

var faults = []fault{
	{"leader cut off from the bucket", "another leads after the lease; a VM lost meanwhile is replaced",
		[]string{alone},
		func(ctx context.Context, s *shard) (string, error) {
			leader, term, err := s.leader(ctx)
			if err != nil {
				return "", err
			}
			began := time.Now()
			s.network.disconnect(leader, local.Store)
			if _, err := s.killVM(ctx); err != nil {
				return "", err
			}
			next, err := s.awaitTerm(ctx, term)
			if err != nil {
				return "", err
			}
			if next == leader {
				return "", fmt.Errorf("%s leads again although it cannot reach the bucket", leader)
			}
			took := time.Since(began)
			err = local.Pause(ctx, faultTime(30*time.Second))
			return fmt.Sprintf("%s led %.1f s later", next, took.Seconds()), err
		}},
	{"answers of the bucket to the leader are lost", "another leads after the lease",
		[]string{alone},
		func(ctx context.Context, s *shard) (string, error) {
			leader, term, err := s.leader(ctx)
			if err != nil {
				return "", err
			}
			s.network.block(local.Store, leader)
			next, err := s.awaitTerm(ctx, term)
			if err != nil {
				return "", err
			}
			err = local.Pause(ctx, faultTime(30*time.Second))
			return next + " led", err
		}},
	{"all VMs cut off from the servers", "at most two replacements, because the VMs run", []string{alone},
		func(ctx context.Context, s *shard) (string, error) {
			before, err := s.Windows(ctx)
			if err != nil {
				return "", err
			}
			for n := 1; n <= servers; n++ {
				s.network.disconnect(vms, local.ServerName(n))
			}
			if err := local.Pause(ctx, faultTime(time.Minute)); err != nil {
				return "", err
			}
			s.network.repair()
			if err := s.converge(ctx); err != nil {
				return "", err
			}
			after, err := s.Windows(ctx)
			replaced := 0
			for _, id := range before {
				if !slices.Contains(after, id) {
					replaced++
				}
			}
			// At most 40 % of the VMs, or two VMs if that is more, may be replaced at a time.
			if replaced > 2 {
				err = errors.Join(err, fmt.Errorf("%d of %d VMs were replaced although they ran", replaced, size))
			}
			return fmt.Sprintf("%d of %d replaced", replaced, size), err
		}},
	{"one VM silent until its replacement is created",
		"it is replaced although it comes back; at most 3 VMs are created",
		[]string{alone},
		func(ctx context.Context, s *shard) (string, error) { return s.flap(ctx) }},
	{"a fifth of all packets lost, VMs killed", "each is replaced", []string{alone},
		func(ctx context.Context, s *shard) (string, error) {
			s.network.losePackets(0.2)
			killed := 0
			for end := time.Now().Add(faultTime(2 * time.Minute)); time.Now().Before(end); {
				if _, err := s.killVM(ctx); err == nil {
					killed++
				}
				if err := local.Pause(ctx, 4*time.Second); err != nil {
					return "", err
				}
			}
			return fmt.Sprintf("%d killed", killed), nil
		}},
	{"kill -9 of the leader, again and again", "another leads each time", []string{withHeir, alone},
		func(ctx context.Context, s *shard) (string, error) {
			var longest time.Duration
			rounds := 3
			if longForm() {
				rounds = 20
			}
			for range rounds {
				leader, term, err := s.awaitLeader(ctx)
				if err != nil {
					return "", err
				}
				began := time.Now()
				if err := s.process(leader).Kill(); err != nil {
					return "", err
				}
				if _, err := s.killVM(ctx); err != nil {
					return "", err
				}
				if _, err := s.awaitTerm(ctx, term); err != nil {
					return "", err
				}
				longest = max(longest, time.Since(began))
				if err := s.restart(ctx, leader); err != nil {
					return "", err
				}
			}
			return fmt.Sprintf("%d times, another led at most %.1f s later", rounds, longest.Seconds()), nil
		}},
	{"kill -9 of the object store, VMs killed",
		"no acknowledged write is lost; VMs keep running; replacements when it is back",
		[]string{alone},
		func(ctx context.Context, s *shard) (string, error) {
			if err := s.process(local.Store).Kill(); err != nil {
				return "", err
			}
			if _, err := s.killVM(ctx); err != nil {
				return "", err
			}
			if err := local.Pause(ctx, faultTime(time.Minute)); err != nil {
				return "", err
			}
			return "", s.restart(ctx, local.Store)
		}},
	{"leader stopped (SIGSTOP) beyond its lease", "another leads; the first does nothing when it continues",
		[]string{withHeir, alone},
		func(ctx context.Context, s *shard) (string, error) {
			leader, term, err := s.awaitLeader(ctx)
			if err != nil {
				return "", err
			}
			pid := s.process(leader).PID
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				return "", err
			}
			if _, err := s.killVM(ctx); err != nil {
				return "", err
			}
			began := time.Now()
			next, err := s.awaitTerm(ctx, term)
			took := time.Since(began)
			if err == nil {
				err = local.Pause(ctx, faultTime(30*time.Second))
			}
			if err := errors.Join(err, syscall.Kill(pid, syscall.SIGCONT)); err != nil {
				return "", err
			}
			_, now, err := s.leader(ctx)
			if err == nil && now < term {
				err = fmt.Errorf("the term fell from %d to %d", term, now)
			}
			return fmt.Sprintf("%s led %.1f s later", next, took.Seconds()), err
		}},
	{"object store stopped (SIGSTOP), VMs killed",
		"half-open connections time out; killed VMs are replaced when it continues", nil,
		func(ctx context.Context, s *shard) (string, error) {
			// The VMs' agents are killed and not paused, because tmux continues paused processes.
			pid := s.process(local.Store).PID
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				return "", err
			}
			_, err := s.killVM(ctx)
			return "", errors.Join(err, local.Pause(ctx, faultTime(time.Minute)), syscall.Kill(pid, syscall.SIGCONT))
		}},
	{"the leader's disk full, VMs killed", "they are replaced, because the cache is not needed", []string{alone},
		func(ctx context.Context, s *shard) (string, error) {
			leader, _, err := s.leader(ctx)
			if err != nil {
				return "", err
			}
			n, err := strconv.Atoi(strings.TrimPrefix(leader, "server-"))
			if err != nil {
				return "", err
			}
			filler := filepath.Join(s.CacheDir(n), "filler")
			written, err := fill(filler)
			if err != nil {
				return "", err
			}
			killed := 0
			for end := time.Now().Add(faultTime(time.Minute)); time.Now().Before(end); killed++ {
				id, err := s.killVM(ctx)
				if err != nil {
					return "", err
				}
				if err := s.replaced(ctx, id); err != nil {
					return "", fmt.Errorf("on a full disk: %w", err)
				}
			}
			return fmt.Sprintf("%d replaced while the disk was full (after %d KiB)", killed, written>>10),
				os.Remove(filler)
		}},
	{"bucket takes no writes (its disk is full)",
		"the lease ends and no server acts; VMs keep running; afterwards killed VMs are replaced", []string{alone},
		func(ctx context.Context, s *shard) (string, error) {
			filler := filepath.Join(s.StoreDir(), ".filler")
			// The leader may delete objects until its lease ends. One freed page would be enough to renew it.
			for end := time.Now().Add(s.effectiveLease() + lease); time.Now().Before(end); {
				if _, err := fill(filler); err != nil {
					return "", err
				}
				if err := local.Pause(ctx, 20*time.Millisecond); err != nil {
					return "", err
				}
			}
			calls, err := s.Calls()
			if _, killErr := s.killVM(ctx); err != nil || killErr != nil {
				return "", errors.Join(err, killErr)
			}
			if err := local.Pause(ctx, faultTime(10*time.Minute)); err != nil {
				return "", err
			}
			later, err := s.Calls()
			if err == nil && len(later) != len(calls) {
				err = fmt.Errorf("%d calls to the provider without a lease", len(later)-len(calls))
			}
			return fmt.Sprintf("no call to the provider in %v", faultTime(10*time.Minute)),
				errors.Join(err, os.Remove(filler))
		}},
	{"the servers' clocks step, each up to four minutes, VMs killed",
		"no failover and no other replacement, because neither depends on the time of day", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, term, err := s.awaitLeader(ctx)
			if err != nil {
				return "", err
			}
			steps := []time.Duration{2 * time.Minute, -2 * time.Minute, 4 * time.Minute, -4 * time.Minute}
			for _, ahead := range steps {
				for name, clock := range s.network.clocks {
					clock.step(ahead)
					if name != leader {
						clock.step(-ahead)
					}
				}
				id, err := s.killVM(ctx)
				if err != nil {
					return "", err
				}
				if err := s.replaced(ctx, id); err != nil {
					return "", fmt.Errorf("with the leader's clock %v ahead: %w", ahead, err)
				}
				if told := s.actions.clockAhead(leader); (told - ahead).Abs() > time.Minute { // from its log
					return "", fmt.Errorf("the leader's clock is %v ahead, and not %v", told, ahead)
				}
			}
			story, err := s.describeTerms(ctx, term)
			return fmt.Sprintf("%s, %d VMs replaced", story, len(steps)), err
		}},
	{"the leader's clock an hour ahead, then right again, a VM killed each time",
		"running VMs stay; killed VMs are replaced, at the latest when the clock is right", nil,
		func(ctx context.Context, s *shard) (string, error) { return s.wrongClock(ctx, time.Hour) }},
	{"the leader's clock an hour behind, then right again, a VM killed each time", "the same", nil,
		func(ctx context.Context, s *shard) (string, error) { return s.wrongClock(ctx, -time.Hour) }},
	{"everything killed together, all disks deleted but the bucket", "the shard is rebuilt from the bucket",
		[]string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			if err := s.KillAll(ctx); err != nil {
				return "", err
			}
			if err := s.WipeDisks(); err != nil {
				return "", err
			}
			for n := 1; n <= servers; n++ {
				if err := empty(s.CacheDir(n)); err != nil {
					return "", err
				}
			}
			return "", s.startAll(ctx)
		}},
}

// wrongClock changes the clock of the leader by more than any permitted deviation, and later sets it right.
func (s *shard) wrongClock(ctx context.Context, ahead time.Duration) (string, error) {
	leader, term, err := s.awaitLeader(ctx)
	if err != nil {
		return "", err
	}
	before, err := s.Windows(ctx)
	if err != nil {
		return "", err
	}
	s.network.clocks[leader].step(ahead)
	killed, err := s.killVM(ctx)
	if err != nil {
		return "", err
	}
	if err := local.Pause(ctx, faultTime(2*time.Minute)); err != nil {
		return "", err
	}
	during, err := s.Windows(ctx)
	if err != nil {
		return "", err
	}
	for _, id := range before {
		if id != killed && !slices.Contains(during, id) {
			return "", fmt.Errorf("%s was deleted although it ran", id)
		}
	}
	if told := s.actions.clockAhead(leader); (told - ahead).Abs() > 10*time.Minute { // from its log
		return "", fmt.Errorf("the leader's clock is %v ahead, and not %v", told, ahead)
	}
	s.network.clocks[leader].step(0)
	if _, err := s.killVM(ctx); err != nil {
		return "", err
	}
	return s.describeTerms(ctx, term)
}

// flap makes one VM silent until a replacement is created, and waits until the VM is gone.
func (s *shard) flap(ctx context.Context) (string, error) {
	running, err := s.VMs()
	if err != nil || len(running) != size {
		return "", errors.Join(err, fmt.Errorf("%d VMs, want %d", len(running), size))
	}
	flapper, others := running[0].Instance, map[uint16]bool{}
	for _, vm := range running[1:] {
		ports, err := tcpPorts(vm.PID)
		if err != nil {
			return "", err
		}
		maps.Copy(others, ports)
	}
	s.network.speakOnly(others)
	for now := running; len(now) == len(running); {
		if err := local.Pause(ctx, 50*time.Millisecond); err != nil {
			return "", err
		}
		if now, err = s.VMs(); err != nil {
			return "", err
		}
	}
	s.network.speakOnly(nil)
	if err := s.replaced(ctx, flapper); err != nil {
		return "", fmt.Errorf("the VM that was silent is kept: %w", err)
	}
	later, err := s.VMs()
	created := 0
	for _, vm := range later {
		if !slices.ContainsFunc(running, func(o local.VM) bool { return o.Instance == vm.Instance }) {
			created++
		}
	}
	if created > 3 {
		err = errors.Join(err, fmt.Errorf("%d VMs were created for one that was silent", created))
	}
	return fmt.Sprintf("%d created", created), err
}

// tcpPorts returns the local ports of the TCP connections of a process. It joins the sockets in /proc/PID/fd with the
// inodes in /proc/PID/net/tcp (Documentation/networking/proc_net_tcp.rst of the Linux kernel).
func tcpPorts(pid int) (map[uint16]bool, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	open, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return nil, err
	}
	sockets := map[string]bool{}
	for _, fd := range open {
		target, _ := os.Readlink(filepath.Join(dir, "fd", fd.Name())) // it may be closed by now
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			sockets[strings.TrimSuffix(inode, "]")] = true
		}
	}
	ports := map[uint16]bool{}
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join(dir, "net", table))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) < 10 || !sockets[fields[9]] {
				continue
			}
			_, port, _ := strings.Cut(fields[1], ":")
			n, err := strconv.ParseUint(port, 16, 16)
			if err != nil {
				return nil, err
			}
			ports[uint16(n)] = true
		}
	}
	return ports, nil
}

// describeTerms returns a text about which server leads now and how many terms have begun. On a busy machine a leader
// may lose its lease at any time.
func (s *shard) describeTerms(ctx context.Context, term uint64) (string, error) {
	next, now, err := s.leader(ctx)
	switch {
	case err != nil:
		return "", err
	case now < term:
		return "", fmt.Errorf("the term fell from %d to %d", term, now)
	case now == term:
		return next + " kept leading in its term", nil
	}
	return fmt.Sprintf("%d terms later %s led", now-term, next), nil
}
