package server

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// unreadable is a store with a fault: keys that start with prefix cannot be read. The fault begins when the first
// term's lock is written, and ends when that lock is released.
type unreadable struct {
	objstore.Store
	prefix string
	broken atomic.Bool
	failed atomic.Int32
}

var errUnreadable = errors.New("injected: cannot be read")

func (u *unreadable) fails(key string) bool {
	if !u.broken.Load() || !strings.HasPrefix(key, u.prefix) {
		return false
	}
	u.failed.Add(1)
	return true
}

func (u *unreadable) Get(ctx context.Context, key string) (objstore.Object, error) {
	if u.fails(key) {
		return objstore.Object{}, errUnreadable
	}
	return u.Store.Get(ctx, key)
}

func (u *unreadable) List(ctx context.Context, prefix string) ([]objstore.Entry, error) {
	if u.fails(prefix) {
		return nil, errUnreadable
	}
	return u.Store.List(ctx, prefix)
}

func (u *unreadable) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token,
	error) {
	if key == keys.Leader("a") {
		if lock, err := record.DecodeLock(body); err == nil && lock.Term == 1 {
			u.broken.Store(!lock.Released)
		}
	}
	return u.Store.Put(ctx, key, body, cond)
}

func TestTemporaryFaultAtTakeoverEndsOnlyTheTerm(t *testing.T) {
	for name, prefix := range map[string]string{"keys": "cluster/secret/", "configuration": "config/",
		"records": "shard/a/instance/"} {
		t.Run(name, func(t *testing.T) {
			r := newTestShard(t)
			r.configure(nil)
			store := &unreadable{Store: r.bucket, prefix: prefix}
			r.bucket = store
			p := r.start(testKey)
			p.await("two VMs", func() bool { return r.running() == 2 })
			if store.failed.Load() == 0 {
				t.Error("no read failed")
			}
			select {
			case err := <-p.done:
				t.Fatalf("the server ended: %v", err)
			default:
			}
			if n := strings.Count(p.log.String(), `"leadership given up"`); n != 1 {
				t.Errorf("leadership was given up %d times; log:\n%s", n, p.log)
			}
			if err := p.end(); err != nil {
				t.Fatal(err)
			}
			if name == "records" {
				checkEndOfTerm(t, r.bucket, 1, errUnreadable.Error())
			}
			lock, err := r.bucket.Get(t.Context(), keys.Leader("a"))
			if err != nil {
				t.Fatal(err)
			}
			if l, err := record.DecodeLock(lock.Body); err != nil || l.Term != 2 || !l.Released {
				t.Errorf("the lock is %s (%v), want term 2, released", lock.Body, err)
			}
		})
	}
}

// destroyed is a store that deletes the shard's configuration when the first lock is written. This simulates a standby
// that takes over after the cluster was destroyed. If the channel released is set, the store sends a value on it when a
// server releases the lock. The store then waits until the test closes the channel.
type destroyed struct {
	objstore.Store
	once     sync.Once
	released chan struct{}
}

func (d *destroyed) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	if key == keys.Leader("a") {
		var err error
		if d.once.Do(func() { err = d.Delete(ctx, keys.Config("a")) }); err != nil {
			return "", err
		}
		if lock, err := record.DecodeLock(body); err == nil && lock.Released && d.released != nil {
			d.released <- struct{}{}
			<-d.released
		}
	}
	return d.Store.Put(ctx, key, body, cond)
}

// TestStopWhileAFailedTermEnds requests a stop while a failed term ends, and checks that the server stops cleanly.
func TestStopWhileAFailedTermEnds(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	store := &destroyed{Store: r.bucket, released: make(chan struct{})}
	r.bucket = store
	p := r.start(testKey)
	select {
	case <-store.released:
	case <-time.After(20 * time.Second):
		t.Fatalf("nothing is given up; log:\n%s", p.log)
	}
	p.stop()
	close(store.released)
	if err := p.wait(); err != nil {
		t.Errorf("%v; log:\n%s", err, p.log)
	}
	if log := p.log.String(); !strings.Contains(log, `"leadership ended with an error"`) ||
		strings.Contains(log, `"leadership given up"`) {
		t.Errorf("log:\n%s", log)
	}
}

func TestDestroyedClusterIsNotCreatedAgain(t *testing.T) {
	r := newTestShard(t)
	r.configure(nil)
	r.bucket = &destroyed{Store: r.bucket}
	p := r.start(testKey)
	p.await("the first term's end", func() bool { return strings.Contains(p.log.String(), `"leadership given up"`) })
	entries, err := r.bucket.List(t.Context(), "cluster/")
	if err != nil || len(entries) > 0 {
		t.Errorf("in the bucket are %v, %v", entries, err)
	}
	r.configure(nil) // the configuration is applied again
	p.await("two VMs", func() bool { return r.running() == 2 })
}
