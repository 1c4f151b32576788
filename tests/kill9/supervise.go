package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/services/dev/local"
)

// supervised is a process that is started again whenever it ends, as systemd would.
type supervised struct {
	start func(context.Context) (*local.Process, error)

	mu      sync.Mutex
	process *local.Process
	delay   time.Duration // before it is started again
}

// begin starts it for the first time.
func (s *supervised) begin(ctx context.Context) (err error) {
	s.process, err = s.start(ctx)
	return err
}

// kill sends SIGKILL, as soon as it runs if it does not; after the delay it is started again. It says what it killed.
func (s *supervised) kill(ctx context.Context, delay time.Duration) (string, error) {
	for {
		s.mu.Lock()
		if s.process.Running() {
			break
		}
		s.mu.Unlock()
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return "", err
		}
	}
	defer s.mu.Unlock()
	s.delay = delay
	_ = syscall.Kill(s.process.PID, syscall.SIGKILL) // it may end meanwhile
	return fmt.Sprintf("PID %d; it is started again after %d ms", s.process.PID, delay.Milliseconds()), nil
}

// supervise starts the process again whenever it has ended, until ctx ends.
func (s *supervised) supervise(ctx context.Context) {
	for {
		s.mu.Lock()
		ended := s.process.Ended()
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-ended:
		}
		s.mu.Lock()
		delay := s.delay
		s.delay = 100 * time.Millisecond // systemd's RestartSec
		s.mu.Unlock()
		if pause(ctx, delay) != nil {
			return
		}
		process, err := s.start(ctx)
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "  supervisor: %v\n", err)
		}
		if process == nil {
			continue // its program could not be started at all; once more
		}
		s.mu.Lock()
		s.process = process
		s.mu.Unlock()
	}
}
