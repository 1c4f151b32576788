package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
)

func TestCoalescesPerKeyInOrder(t *testing.T) {
	var hub Hub[string, int]
	sub := hub.Subscribe(3, nil)
	hub.Publish("a", 1)
	hub.Publish("b", 1)
	hub.Publish("a", 2)
	for _, want := range []int{2, 1} {
		if got, err := sub.Next(t.Context()); err != nil || got != want {
			t.Fatalf("got %d, %v, want %d", got, err, want)
		}
	}
	hub.Publish("a", 3)
	if got, err := sub.Next(t.Context()); err != nil || got != 3 {
		t.Fatalf("got %d, %v", got, err)
	}
}

func TestSlowReaderIsDisconnected(t *testing.T) {
	var hub Hub[int, int]
	slow := hub.Subscribe(2, nil)
	other := hub.Subscribe(10, func(k int) bool { return k%2 == 0 })
	for i := range 4 {
		hub.Publish(i, i)
	}
	<-slow.Slow()
	if _, err := slow.Next(t.Context()); !errors.Is(err, ErrSlow) {
		t.Fatalf("slow reader got %v", err)
	}
	select {
	case <-other.Slow():
		t.Error("the other reader is slow too")
	default:
	}
	if len(hub.subs) != 1 {
		t.Errorf("%d subscribers left, want 1", len(hub.subs))
	}
	for _, want := range []int{0, 2} {
		if got, err := other.Next(t.Context()); err != nil || got != want {
			t.Fatalf("got %d, %v, want %d", got, err, want)
		}
	}
}

func TestCloseEndsAfterWhatIsQueued(t *testing.T) {
	var hub Hub[int, int]
	sub := hub.Subscribe(2, nil)
	hub.Publish(1, 1)
	hub.Close()
	if got, err := sub.Next(t.Context()); err != nil || got != 1 {
		t.Fatalf("got %d, %v", got, err)
	}
	if _, err := sub.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Fatalf("got %v", err)
	}
	if _, err := hub.Subscribe(1, nil).Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Fatalf("late subscriber got %v", err)
	}
}

func TestNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hub Hub[string, string]
		sub := hub.Subscribe(1000, nil)
		var readers sync.WaitGroup
		seen := map[string]bool{}
		readers.Go(func() {
			for range 100 {
				v, err := sub.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				seen[v] = true
			}
		})
		for i := range 100 {
			synctest.Wait()
			hub.Publish(fmt.Sprint(i), fmt.Sprint(i))
		}
		readers.Wait()
		if len(seen) != 100 {
			t.Errorf("%d events arrived", len(seen))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := sub.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}
