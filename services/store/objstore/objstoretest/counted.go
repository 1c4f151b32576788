package objstoretest

import (
	"errors"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Counts are numbers of calls, including failed calls. A List is one call, regardless of its pages.
type Counts struct {
	Get, Put, Delete, List uint64
	// Failed counts the calls that returned an error, except ErrNotFound from Get and ErrConflict from Put.
	Failed uint64
}

// Total returns the number of all calls.
func (c Counts) Total() uint64 { return c.Get + c.Put + c.Delete + c.List }

// Sub returns the number of calls since an earlier reading.
func (c Counts) Sub(earlier Counts) Counts {
	return Counts{
		Get:    c.Get - earlier.Get,
		Put:    c.Put - earlier.Put,
		Delete: c.Delete - earlier.Delete,
		List:   c.List - earlier.List,
		Failed: c.Failed - earlier.Failed,
	}
}

// Counted is a Store that counts the calls to another store.
type Counted struct {
	objstore.Store
	mu     sync.Mutex
	counts Counts
}

// NewCounted wraps store.
func NewCounted(store objstore.Store) *Counted {
	c := &Counted{}
	c.Store = objstore.WithObserver(store, c.count)
	return c
}

// Counts returns the numbers so far.
func (c *Counted) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}

func (c *Counted) count(op string, _ time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	number, answer := &c.counts.List, error(nil)
	switch op {
	case "get":
		number, answer = &c.counts.Get, objstore.ErrNotFound
	case "put":
		number, answer = &c.counts.Put, objstore.ErrConflict
	case "delete":
		number = &c.counts.Delete
	}
	*number++
	if err != nil && (answer == nil || !errors.Is(err, answer)) {
		c.counts.Failed++
	}
}
