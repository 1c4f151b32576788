package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// maxGap limits the time without a leader if no server has to wait for the end of the lease. It is enough for an heir's
// promise, the safety margin of the promise, and the start of a term on a busy machine.
const maxGap = 5 * time.Second

// heirFaults are the faults for shards with an heir.
var heirFaults = []fault{
	{"leader and heir cut off from each other", "one of them leads after a promise at the latest; never both",
		[]string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.awaitPair(ctx)
			if err != nil {
				return "", err
			}
			s.network.disconnect(leader, heir)
			return s.checkAlwaysLed(ctx, term, 30*time.Second)
		}},
	{"the heir hears nothing of the leader, which hears it", "the same", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.awaitPair(ctx)
			if err != nil {
				return "", err
			}
			s.network.block(leader, heir)
			return s.checkAlwaysLed(ctx, term, 30*time.Second)
		}},
	{"the leader hears nothing of the heir, which hears it", "the same", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.awaitPair(ctx)
			if err != nil {
				return "", err
			}
			s.network.block(heir, leader)
			return s.checkAlwaysLed(ctx, term, 30*time.Second)
		}},
	{"a fifth of the packets between the two lost, the others 200 ms late",
		"the same, however often the heir comes and goes", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.awaitPair(ctx)
			if err != nil {
				return "", err
			}
			s.network.change(leader, heir, link{0.2, 200 * time.Millisecond})
			s.network.change(heir, leader, link{0.2, 200 * time.Millisecond})
			return s.checkAlwaysLed(ctx, term, 5*time.Minute)
		}},
	{"heir cut off from the bucket, then the leader killed (kill -9)",
		"the leader keeps leading; after the kill no server leads until the heir reaches the bucket",
		[]string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.awaitPair(ctx)
			if err != nil {
				return "", err
			}
			s.network.disconnect(heir, local.Store)
			seen, err := s.checkAlwaysLed(ctx, term, 30*time.Second)
			if err != nil {
				return "", err
			}
			if found := s.polls.leaders(); !found[leader].leads {
				return "", fmt.Errorf("%v lead; want %s, which reaches the bucket", found, leader)
			}
			if err := s.process(leader).Kill(); err != nil {
				return "", err
			}
			if err := local.Pause(ctx, maxGap); err != nil {
				return "", err
			}
			if found := s.polls.leaders(); len(found) > 0 {
				return "", fmt.Errorf("%v lead without the bucket", found)
			}
			s.network.repair()
			began := time.Now()
			if _, err := s.awaitTerm(ctx, term); err != nil {
				return "", err
			}
			return fmt.Sprintf("%s; %s led %.1f s after it reached the bucket", seen, heir,
				time.Since(began).Seconds()), s.restart(ctx, leader)
		}},
	{"leader and heir cut off from the bucket", "the leader keeps leading until its lease ends; then no server acts",
		[]string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, _, err := s.awaitPair(ctx)
			if err != nil {
				return "", err
			}
			s.network.disconnect(leader, local.Store)
			s.network.disconnect(heir, local.Store)
			began := time.Now()
			for len(s.polls.leaders()) > 0 {
				if took := time.Since(began); took > s.effectiveLease()+maxGap {
					return "", fmt.Errorf("%v still lead %v after they were cut off", s.polls.leaders(), took)
				}
				if err := local.Pause(ctx, 20*time.Millisecond); err != nil {
					return "", err
				}
			}
			took := time.Since(began)
			calls, err := s.Calls()
			if _, killErr := s.killVM(ctx); err != nil || killErr != nil {
				return "", errors.Join(err, killErr)
			}
			if err := local.Pause(ctx, faultTime(time.Minute)); err != nil {
				return "", err
			}
			later, err := s.Calls()
			if err == nil && len(later) != len(calls) {
				err = fmt.Errorf("%d calls to the provider without a lease", len(later)-len(calls))
			}
			return fmt.Sprintf("no leader %.1f s after, and no call to the provider in %v", took.Seconds(),
				faultTime(time.Minute)), err
		}},
	{"leader cut off from the heir and the bucket", "the heir leads after a promise; the old leader does nothing",
		[]string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.awaitPair(ctx)
			if err != nil {
				return "", err
			}
			began := time.Now()
			s.network.disconnect(leader, heir)
			s.network.disconnect(leader, local.Store)
			if _, err := s.killVM(ctx); err != nil {
				return "", err
			}
			next, err := s.awaitTerm(ctx, term)
			if err != nil {
				return "", err
			}
			took := time.Since(began)
			if next != heir || took > maxGap {
				return "", fmt.Errorf("%s led after %v, want %s within %v", next, took, heir, maxGap)
			}
			return fmt.Sprintf("%s led %.1f s later", next, took.Seconds()),
				local.Pause(ctx, shortFaultTime(30*time.Second, maxGap))
		}},
	{"each answer of the bucket comes a second later",
		"the leader keeps its term, because its lease permits the latency",
		[]string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			_, _, term, err := s.awaitPair(ctx)
			if err != nil {
				return "", err
			}
			for n := 1; n <= servers; n++ {
				s.network.change(local.Store, local.ServerName(n), link{delay: time.Second})
			}
			if err := local.Pause(ctx, shortFaultTime(5*time.Minute, 2*s.effectiveLease())); err != nil {
				return "", err
			}
			s.network.repair()
			_, now, err := s.leader(ctx)
			if err == nil && now != term {
				err = fmt.Errorf("term %d began, although the lease of term %d permits such answers", now, term)
			}
			return "the leader kept its term", err
		}},
	{"heir killed (kill -9)", "the leader keeps its term and gets an heir again", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			_, heir, term, err := s.awaitPair(ctx)
			if err != nil {
				return "", err
			}
			if err := s.process(heir).Kill(); err != nil {
				return "", err
			}
			seen, err := s.checkAlwaysLed(ctx, term, 30*time.Second)
			return seen, errors.Join(err, s.restart(ctx, heir))
		}},
	{"heir stopped (SIGSTOP)", "the same; the old heir does nothing when it continues", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			_, heir, term, err := s.awaitPair(ctx)
			if err != nil {
				return "", err
			}
			pid := s.process(heir).PID
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				return "", err
			}
			seen, err := s.checkAlwaysLed(ctx, term, 30*time.Second)
			return seen, errors.Join(err, syscall.Kill(pid, syscall.SIGCONT))
		}},
	{"leader and heir killed (kill -9)",
		"after a restart one leads as soon as the provider reports that the old machine is gone", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.awaitPair(ctx)
			if err != nil {
				return "", err
			}
			began := time.Now()
			if err := errors.Join(s.process(leader).Kill(), s.process(heir).Kill()); err != nil {
				return "", err
			}
			_, err = s.killVM(ctx)
			if err := errors.Join(err, s.restart(ctx, leader), s.restart(ctx, heir)); err != nil {
				return "", err
			}
			next, err := s.awaitTerm(ctx, term)
			took := time.Since(began)
			if most := s.effectiveLease()*11/10 + maxGap; err == nil && took > most {
				err = fmt.Errorf("no leader for %v, want at most %v", took, most)
			}
			return fmt.Sprintf("%s led %.1f s later", next, took.Seconds()), err
		}},
	{"leader stopped (SIGSTOP), heir killed (kill -9)",
		"the restarted heir is an heir no longer and waits for the lease", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.awaitPair(ctx)
			if err != nil {
				return "", err
			}
			pid := s.process(leader).PID
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				return "", err
			}
			began := time.Now()
			var low time.Duration
			next, err := func() (string, error) {
				if err := s.process(heir).Kill(); err != nil {
					return "", err
				}
				var err error
				if low, err = s.lockLease(); err != nil {
					return "", err
				}
				if err := s.restart(ctx, heir); err != nil {
					return "", err
				}
				return s.awaitTerm(ctx, term)
			}()
			took := time.Since(began)
			if err := errors.Join(err, syscall.Kill(pid, syscall.SIGCONT)); err != nil {
				return "", err
			}
			// The restarted server waits until the lease in the lock has passed since it first saw the lock. This lease
			// is shorter if the leader had just lost its heir, as can happen on a busy machine.
			if most := s.effectiveLease()*11/10 + maxGap; next != heir || took < low || took > most {
				return "", fmt.Errorf("%s led after %v, want %s after %v to %v", next, took, heir, low, most)
			}
			return fmt.Sprintf("%s led %.1f s later", next, took.Seconds()), nil
		}},
}

// lockLease returns the lease that is recorded in the lock.
func (s *shard) lockLease() (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(s.StoreDir(), filepath.FromSlash(keys.Leader(local.Shard))))
	if err != nil {
		return 0, err
	}
	lock, err := record.DecodeLock(text)
	return time.Duration(lock.LeaseMS) * time.Millisecond, err
}

// checkAlwaysLed kills a VM and waits for the time "full". In the short form of the test it waits for maxGap at most.
// It fails if the shard had no leader for longer than maxGap. It returns the text of describeTerms.
func (s *shard) checkAlwaysLed(ctx context.Context, term uint64, full time.Duration) (string, error) {
	if _, err := s.killVM(ctx); err != nil {
		return "", err
	}
	if err := local.Pause(ctx, shortFaultTime(full, maxGap)); err != nil {
		return "", err
	}
	if gap := s.polls.longestGap(); gap > maxGap {
		return "", fmt.Errorf("no leader for %v", gap)
	}
	return s.describeTerms(ctx, term)
}
