package chaos

import (
	"context"
	"errors"
	"fmt"
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
			s.network.part(leader, local.Store)
			if _, err := s.kill(ctx); err != nil {
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
			err = pause(ctx, lasting(30*time.Second))
			return fmt.Sprintf("%s led %.1f s later", next, took.Seconds()), err
		}},
	{"answers of the bucket to the leader are lost", "the same: what the bucket does unheard counts for nothing",
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
			err = pause(ctx, lasting(30*time.Second))
			return next + " led", err
		}},
	{"all VMs cut off from the servers", "no wave of replacements: the VMs run", []string{alone},
		func(ctx context.Context, s *shard) (string, error) {
			before, err := s.Windows(ctx)
			if err != nil {
				return "", err
			}
			for n := 1; n <= servers; n++ {
				s.network.part(vms, local.ServerName(n))
			}
			if err := pause(ctx, lasting(time.Minute)); err != nil {
				return "", err
			}
			s.network.mend()
			if err := s.rest(ctx); err != nil {
				return "", err
			}
			after, err := s.Windows(ctx)
			replaced := 0
			for _, id := range before {
				if !slices.Contains(after, id) {
					replaced++
				}
			}
			// Page 4: max_unhealthy is 40 %, and at least 2.
			if replaced > 2 {
				err = errors.Join(err, fmt.Errorf("%d of %d VMs were replaced although they ran", replaced, size))
			}
			return fmt.Sprintf("%d of %d replaced", replaced, size), err
		}},
	{"a fifth of all packets lost, VMs dying", "each is replaced", []string{alone},
		func(ctx context.Context, s *shard) (string, error) {
			s.network.lose(0.2)
			killed := 0
			for end := time.Now().Add(lasting(2 * time.Minute)); time.Now().Before(end); {
				if _, err := s.kill(ctx); err == nil {
					killed++
				}
				if err := pause(ctx, 4*time.Second); err != nil {
					return "", err
				}
			}
			return fmt.Sprintf("%d killed", killed), nil
		}},
	{"kill -9 of the leader, again and again", "another leads each time", []string{withHeir, alone},
		func(ctx context.Context, s *shard) (string, error) {
			var longest time.Duration
			rounds := 3
			if long {
				rounds = 20
			}
			for range rounds {
				leader, term, err := s.victim(ctx)
				if err != nil {
					return "", err
				}
				began := time.Now()
				if err := s.process(leader).Kill(); err != nil {
					return "", err
				}
				if _, err := s.kill(ctx); err != nil {
					return "", err
				}
				if _, err := s.awaitTerm(ctx, term); err != nil {
					return "", err
				}
				longest = max(longest, time.Since(began))
				if err := s.revive(ctx, leader); err != nil {
					return "", err
				}
			}
			return fmt.Sprintf("%d times, another led at most %.1f s later", rounds, longest.Seconds()), nil
		}},
	{"kill -9 of the object store, VMs dying", "nothing acknowledged is lost; VMs run on; replaced when it is back",
		[]string{alone},
		func(ctx context.Context, s *shard) (string, error) {
			if err := s.process(local.Store).Kill(); err != nil {
				return "", err
			}
			if _, err := s.kill(ctx); err != nil {
				return "", err
			}
			if err := pause(ctx, lasting(time.Minute)); err != nil {
				return "", err
			}
			return "", s.revive(ctx, local.Store)
		}},
	{"leader stopped (SIGSTOP) beyond its lease", "another leads; the first does nothing when it wakes up",
		[]string{withHeir, alone},
		func(ctx context.Context, s *shard) (string, error) {
			leader, term, err := s.victim(ctx)
			if err != nil {
				return "", err
			}
			pid := s.process(leader).PID
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				return "", err
			}
			if _, err := s.kill(ctx); err != nil {
				return "", err
			}
			began := time.Now()
			next, err := s.awaitTerm(ctx, term)
			took := time.Since(began)
			if err == nil {
				err = pause(ctx, lasting(30*time.Second))
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
	{"object store stopped (SIGSTOP), VMs dying",
		"half-open connections end by themselves; the dead are replaced when it goes on", nil,
		func(ctx context.Context, s *shard) (string, error) {
			// Agents cannot be stopped like this: tmux continues its panes' processes.
			pid := s.process(local.Store).PID
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				return "", err
			}
			_, err := s.kill(ctx)
			return "", errors.Join(err, pause(ctx, lasting(time.Minute)), syscall.Kill(pid, syscall.SIGCONT))
		}},
	{"the leader's disk full, VMs dying", "they are replaced: the cache is no truth", []string{alone},
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
			for end := time.Now().Add(lasting(time.Minute)); time.Now().Before(end); killed++ {
				id, err := s.kill(ctx)
				if err != nil {
					return "", err
				}
				if err := s.replaced(ctx, id); err != nil {
					return "", fmt.Errorf("on a full disk: %w", err)
				}
			}
			return fmt.Sprintf("%d replaced while not a byte could be written (after %d KiB)", killed, written>>10),
				os.Remove(filler)
		}},
	{"bucket takes no writes (its disk is full)",
		"the lease ends and nobody acts; VMs run on; afterwards the dead are replaced", []string{alone},
		func(ctx context.Context, s *shard) (string, error) {
			filler := filepath.Join(s.StoreDir(), ".filler")
			if _, err := fill(filler); err != nil {
				return "", err
			}
			if err := pause(ctx, s.lease()+lease); err != nil {
				return "", err
			}
			calls, err := s.Calls()
			if _, killErr := s.kill(ctx); err != nil || killErr != nil {
				return "", errors.Join(err, killErr)
			}
			if err := pause(ctx, lasting(10*time.Minute)); err != nil {
				return "", err
			}
			later, err := s.Calls()
			if err == nil && len(later) != len(calls) {
				err = fmt.Errorf("%d calls to the provider without a lease", len(later)-len(calls))
			}
			return fmt.Sprintf("no call to the provider in %v", lasting(10*time.Minute)),
				errors.Join(err, os.Remove(filler))
		}},
	{"the servers' clocks step, each up to four minutes, VMs dying",
		"nothing else happens: who leads is not a matter of the time of day, nor who lives", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, term, err := s.victim(ctx)
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
				id, err := s.kill(ctx)
				if err != nil {
					return "", err
				}
				if err := s.replaced(ctx, id); err != nil {
					return "", fmt.Errorf("with the leader's clock %v ahead: %w", ahead, err)
				}
				if told := s.journal.told(leader); (told - ahead).Abs() > time.Minute { // it logs what it does
					return "", fmt.Errorf("the leader's clock is %v ahead, and not %v", told, ahead)
				}
			}
			story, err := s.since(ctx, term)
			return fmt.Sprintf("%s, %d VMs replaced", story, len(steps)), err
		}},
	{"the leader's clock an hour ahead, then right again, a VM dying each time",
		"VMs that run go on; the dead are replaced, at the latest when the clock is right", nil,
		func(ctx context.Context, s *shard) (string, error) { return s.wrongClock(ctx, time.Hour) }},
	{"the leader's clock an hour behind, then right again, a VM dying each time", "the same", nil,
		func(ctx context.Context, s *shard) (string, error) { return s.wrongClock(ctx, -time.Hour) }},
	{"everything killed at once, all disks deleted but the bucket", "all is rebuilt from the bucket",
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

// wrongClock sets the leader's clock wrong by more than anybody allows for, and right again.
func (s *shard) wrongClock(ctx context.Context, ahead time.Duration) (string, error) {
	leader, term, err := s.victim(ctx)
	if err != nil {
		return "", err
	}
	before, err := s.Windows(ctx)
	if err != nil {
		return "", err
	}
	s.network.clocks[leader].step(ahead)
	gone, err := s.kill(ctx)
	if err != nil {
		return "", err
	}
	if err := pause(ctx, lasting(2*time.Minute)); err != nil {
		return "", err
	}
	during, err := s.Windows(ctx)
	if err != nil {
		return "", err
	}
	for _, id := range before {
		if id != gone && !slices.Contains(during, id) {
			return "", fmt.Errorf("%s was ended although it ran", id)
		}
	}
	if told := s.journal.told(leader); (told - ahead).Abs() > 10*time.Minute { // it logs what it does
		return "", fmt.Errorf("the leader's clock is %v ahead, and not %v", told, ahead)
	}
	s.network.clocks[leader].step(0)
	if _, err := s.kill(ctx); err != nil {
		return "", err
	}
	return s.since(ctx, term)
}

// since says who leads now and how many terms later that is. A busy machine may cost a leader its lease at any time.
func (s *shard) since(ctx context.Context, term uint64) (string, error) {
	next, now, err := s.leader(ctx)
	switch {
	case err != nil:
		return "", err
	case now < term:
		return "", fmt.Errorf("the term fell from %d to %d", term, now)
	case now == term:
		return next + " led on in its term", nil
	}
	return fmt.Sprintf("%d terms later %s led", now-term, next), nil
}
