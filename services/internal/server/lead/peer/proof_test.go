package peer

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// texts collects log messages with their attributes.
type texts struct {
	slog.Handler
	lines chan string
}

func (h texts) Enabled(context.Context, slog.Level) bool { return true }

func (h texts) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	select {
	case h.lines <- line:
	default:
	}
	return nil
}

// copyOf returns a bucket with the same objects.
func copyOf(t *testing.T, bucket objstore.Store) objstore.Store {
	t.Helper()
	to := mem.New(mem.Options{})
	entries, err := bucket.List(t.Context(), "")
	for _, e := range entries {
		object, getErr := bucket.Get(t.Context(), e.Key)
		_, putErr := to.Put(t.Context(), e.Key, object.Body, objstore.Always())
		err = errors.Join(err, getErr, putErr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// TestStandbyOnACopyOfTheBucketIsRefused checks that a server which uses a copy of the leader's bucket gets no link to
// the leader, so that it never becomes the heir. The servers on the leader's bucket get one.
func TestStandbyOnACopyOfTheBucketIsRefused(t *testing.T) {
	c := transporttest.New(t)
	bucket := mem.New(mem.Options{})
	leader := startOn(t, c, "s", "one", slog.DiscardHandler, bucket)
	lines := make(chan string, 100)
	stranger := startOn(t, c, "s", "two", texts{slog.DiscardHandler, lines}, copyOf(t, bucket))
	stranger.network.Follow(leader.lock())
	select {
	case line := <-lines:
		if !strings.Contains(line, "no link to the leader") || !strings.Contains(line, "not the leader's bucket") {
			t.Errorf("the standby logs %q", line)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the standby logs nothing")
	}
	friend := startOn(t, c, "s", "three", slog.DiscardHandler, bucket)
	friend.network.Follow(leader.lock())
	leader.hears(t, election.LinkUp{Peer: friend.self}) // and nothing about the stranger before
	if peers := leader.network.Standbys(); len(peers) != 1 || peers[0].Peer != friend.self {
		t.Errorf("linked are %v", peers)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		left, err := bucket.List(t.Context(), keys.ProbePrefix("s"))
		if err == nil && len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("left in the bucket: %v, %v", left, err)
		}
	}
}

// TestReconnectNeedsNoBucket checks that a standby which has proved its bucket to the leader reconnects to it while the
// bucket does not answer.
func TestReconnectNeedsNoBucket(t *testing.T) {
	c := transporttest.New(t)
	var broken atomic.Bool
	bucket := mem.New(mem.Options{Inject: func(context.Context, mem.Request) mem.Fault {
		if broken.Load() {
			return mem.Fault{Err: errors.New("no answer")}
		}
		return mem.Fault{}
	}})
	leader := startOn(t, c, "s", "one", slog.DiscardHandler, bucket)
	standby := startOn(t, c, "s", "two", slog.DiscardHandler, bucket)
	standby.network.Follow(leader.lock())
	leader.hears(t, election.LinkUp{Peer: standby.self})
	broken.Store(true)
	standby.network.Follow(leader.lock()) // a new connection
	leader.hears(t, election.LinkDown{Peer: standby.self})
	leader.hears(t, election.LinkUp{Peer: standby.self})
}
