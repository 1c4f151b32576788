package chaos

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/services/dev/local"
)

// brief is how long there may be no leader where nobody has to wait for the lease: a promise, its margin and the
// beginning of a term, on a machine that is busy with other things.
const brief = 5 * time.Second

// heirFaults are those that only a shard with an heir meets.
var heirFaults = []fault{
	{"leader and heir cut off from each other", "either leads after a promise at the latest; they never both do",
		[]string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.pair(ctx)
			if err != nil {
				return "", err
			}
			s.network.part(leader, heir)
			return s.ledThrough(ctx, term, 30*time.Second)
		}},
	{"the heir hears nothing of the leader, which hears it", "the same", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.pair(ctx)
			if err != nil {
				return "", err
			}
			s.network.block(leader, heir)
			return s.ledThrough(ctx, term, 30*time.Second)
		}},
	{"the leader hears nothing of the heir, which hears it", "the same", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.pair(ctx)
			if err != nil {
				return "", err
			}
			s.network.block(heir, leader)
			return s.ledThrough(ctx, term, 30*time.Second)
		}},
	{"a fifth of the packets between the two lost, the others 200 ms late",
		"the same, however often the heir comes and goes", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.pair(ctx)
			if err != nil {
				return "", err
			}
			s.network.change(leader, heir, weather{0.2, 200 * time.Millisecond})
			s.network.change(heir, leader, weather{0.2, 200 * time.Millisecond})
			return s.ledThrough(ctx, term, 5*time.Minute)
		}},
	{"heir cut off from the bucket, then the leader killed (kill -9)",
		"the leader goes on; then nobody leads until the heir reaches the bucket", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.pair(ctx)
			if err != nil {
				return "", err
			}
			s.network.part(heir, local.Store)
			seen, err := s.ledThrough(ctx, term, 30*time.Second)
			if err != nil {
				return "", err
			}
			if found := s.watch.leaders(); !found[leader].leads {
				return "", fmt.Errorf("%v lead, and not %s, which reaches the bucket", found, leader)
			}
			if err := s.process(leader).Kill(); err != nil {
				return "", err
			}
			if err := pause(ctx, brief); err != nil {
				return "", err
			}
			if found := s.watch.leaders(); len(found) > 0 {
				return "", fmt.Errorf("%v lead without the bucket", found)
			}
			s.network.mend()
			began := time.Now()
			if _, err := s.awaitTerm(ctx, term); err != nil {
				return "", err
			}
			return fmt.Sprintf("%s; %s led %.1f s after it reached the bucket", seen, heir,
				time.Since(began).Seconds()), s.revive(ctx, leader)
		}},
	{"leader and heir cut off from the bucket", "the leader goes on until its lease is over, then nobody acts",
		[]string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, _, err := s.pair(ctx)
			if err != nil {
				return "", err
			}
			s.network.part(leader, local.Store)
			s.network.part(heir, local.Store)
			began := time.Now()
			for len(s.watch.leaders()) > 0 {
				if took := time.Since(began); took > s.lease()+brief {
					return "", fmt.Errorf("%v still lead %v after they were cut off", s.watch.leaders(), took)
				}
				if err := pause(ctx, 20*time.Millisecond); err != nil {
					return "", err
				}
			}
			took := time.Since(began)
			calls, err := s.Calls()
			if _, killErr := s.kill(ctx); err != nil || killErr != nil {
				return "", errors.Join(err, killErr)
			}
			if err := pause(ctx, lasting(time.Minute)); err != nil {
				return "", err
			}
			later, err := s.Calls()
			if err == nil && len(later) != len(calls) {
				err = fmt.Errorf("%d calls to the provider without a lease", len(later)-len(calls))
			}
			return fmt.Sprintf("no leader %.1f s after, and no call to the provider in %v", took.Seconds(),
				lasting(time.Minute)), err
		}},
	{"leader cut off from the heir and the bucket", "the heir leads after a promise; the first does nothing more",
		[]string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.pair(ctx)
			if err != nil {
				return "", err
			}
			began := time.Now()
			s.network.part(leader, heir)
			s.network.part(leader, local.Store)
			if _, err := s.kill(ctx); err != nil {
				return "", err
			}
			next, err := s.awaitTerm(ctx, term)
			if err != nil {
				return "", err
			}
			took := time.Since(began)
			if next != heir || took > brief {
				return "", fmt.Errorf("%s led after %v, want %s within %v", next, took, heir, brief)
			}
			return fmt.Sprintf("%s led %.1f s later", next, took.Seconds()),
				pause(ctx, lastingShort(30*time.Second, brief))
		}},
	{"heir killed (kill -9)", "the leader goes on in its term, and has an heir again", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			_, heir, term, err := s.pair(ctx)
			if err != nil {
				return "", err
			}
			if err := s.process(heir).Kill(); err != nil {
				return "", err
			}
			seen, err := s.ledThrough(ctx, term, 30*time.Second)
			return seen, errors.Join(err, s.revive(ctx, heir))
		}},
	{"heir stopped (SIGSTOP)", "the same; it does nothing when it goes on", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			_, heir, term, err := s.pair(ctx)
			if err != nil {
				return "", err
			}
			pid := s.process(heir).PID
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				return "", err
			}
			seen, err := s.ledThrough(ctx, term, 30*time.Second)
			return seen, errors.Join(err, syscall.Kill(pid, syscall.SIGCONT))
		}},
	{"leader and heir killed (kill -9)",
		"started again, one leads as soon as the provider says that the leader's machine is gone", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.pair(ctx)
			if err != nil {
				return "", err
			}
			began := time.Now()
			if err := errors.Join(s.process(leader).Kill(), s.process(heir).Kill()); err != nil {
				return "", err
			}
			_, err = s.kill(ctx)
			if err := errors.Join(err, s.revive(ctx, leader), s.revive(ctx, heir)); err != nil {
				return "", err
			}
			next, err := s.awaitTerm(ctx, term)
			took := time.Since(began)
			if most := s.lease()*11/10 + brief; err == nil && took > most {
				err = fmt.Errorf("nobody led for %v, want at most %v", took, most)
			}
			return fmt.Sprintf("%s led %.1f s later", next, took.Seconds()), err
		}},
	{"leader stopped (SIGSTOP), heir killed (kill -9)",
		"the heir, started again, is everybody else, and waits for the lease", []string{withHeir},
		func(ctx context.Context, s *shard) (string, error) {
			leader, heir, term, err := s.pair(ctx)
			if err != nil {
				return "", err
			}
			pid := s.process(leader).PID
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				return "", err
			}
			began := time.Now()
			next, err := func() (string, error) {
				if err := s.process(heir).Kill(); err != nil {
					return "", err
				}
				if err := s.revive(ctx, heir); err != nil {
					return "", err
				}
				return s.awaitTerm(ctx, term)
			}()
			took := time.Since(began)
			if err := errors.Join(err, syscall.Kill(pid, syscall.SIGCONT)); err != nil {
				return "", err
			}
			// It counts from when it first saw the lock, which was after the leader's last renewal.
			if low, most := s.lease(), s.lease()*11/10+brief; next != heir || took < low || took > most {
				return "", fmt.Errorf("%s led after %v, want %s after %v to %v", next, took, heir, low, most)
			}
			return fmt.Sprintf("%s led %.1f s later", next, took.Seconds()), nil
		}},
}

// ledThrough has VMs die for a while in which there must be a leader all the time, but for a moment, and says what
// became of the term.
func (s *shard) ledThrough(ctx context.Context, term uint64, full time.Duration) (string, error) {
	if _, err := s.kill(ctx); err != nil {
		return "", err
	}
	if err := pause(ctx, lastingShort(full, brief)); err != nil {
		return "", err
	}
	if gap := s.watch.without(); gap > brief {
		return "", fmt.Errorf("nobody led for %v", gap)
	}
	return s.since(ctx, term)
}
