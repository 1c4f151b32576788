package tasks_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, _ := tasks.Real()
		began := env.Now()
		if err := env.Sleep(t.Context(), time.Hour); err != nil || env.Now().Sub(began) != time.Hour {
			t.Errorf("slept for %v: %v", env.Now().Sub(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began = env.Now()
		if err := env.Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) ||
			env.Now().Sub(began) != time.Minute {
			t.Errorf("slept for %v: %v", env.Now().Sub(began), err)
		}
		if err := env.Sleep(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no time in an ended context: %v", err)
		}
		if err := env.Sleep(t.Context(), -time.Second); err != nil {
			t.Errorf("less than no time: %v", err)
		}
	})
}

func TestWaitWaitsForAllTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, wait := tasks.Real()
		wait() // no task runs
		var ended atomic.Int32
		env.Go("outer", func() {
			_ = env.Sleep(t.Context(), time.Second)
			env.Go("inner", func() {
				_ = env.Sleep(t.Context(), time.Second)
				ended.Add(1)
			})
			ended.Add(1)
		})
		waited := false
		go func() {
			wait()
			waited = true
		}()
		synctest.Wait()
		env.Go("started during a wait", func() { _ = env.Sleep(t.Context(), 3*time.Second); ended.Add(1) })
		wait()
		synctest.Wait()
		if ended.Load() != 3 || !waited {
			t.Errorf("%d tasks have ended, the other has waited: %t", ended.Load(), waited)
		}
	})
}

func TestForEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, _ := tasks.Real()
		var running, most, calls atomic.Int64
		work := func(ctx context.Context, _ int) error {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			calls.Add(1)
			return env.Sleep(ctx, time.Second)
		}
		if err := env.ForEach(t.Context(), 10, 3, work); err != nil || calls.Load() != 10 || most.Load() != 3 {
			t.Errorf("%v: %d calls, %d at a time", err, calls.Load(), most.Load())
		}
		if err := env.ForEach(t.Context(), 0, 3, work); err != nil {
			t.Error(err)
		}

		calls.Store(0)
		broken := errors.New("broken")
		err := env.ForEach(t.Context(), 10, 2, func(ctx context.Context, i int) error {
			if i == 1 {
				return broken
			}
			return work(ctx, i)
		})
		if !errors.Is(err, broken) || calls.Load() > 2 || running.Load() != 0 {
			t.Errorf("after an error: %v, %d calls, %d still running", err, calls.Load(), running.Load())
		}

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		calls.Store(0)
		if err := env.ForEach(ctx, 10, 2, work); !errors.Is(err, context.Canceled) || calls.Load() != 0 {
			t.Errorf("in an ended context: %v, %d calls", err, calls.Load())
		}
	})
}

func TestRun(t *testing.T) {
	broken := errors.New("broken")
	untilEnd := func(ctx context.Context) error { <-ctx.Done(); return nil }
	for name, tt := range map[string]struct {
		daemon func(context.Context) error
		want   error
	}{
		"one fails":   {func(context.Context) error { return broken }, broken},
		"one returns": {func(context.Context) error { return nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tasks.Run(t.Context(), untilEnd, tt.daemon, untilEnd); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
	t.Run("the context ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := tasks.Run(ctx, untilEnd, untilEnd); err != nil {
			t.Error(err)
		}
	})
}
