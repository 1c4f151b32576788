package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
)

// openBucket opens the shard's bucket. It makes no request.
func (s *server) openBucket(ctx context.Context) error {
	store, at := s.cfg.Bucket, s.opts.Location
	if store == nil {
		var err error
		if store, err = open.Open(ctx, at); err != nil {
			return fmt.Errorf("open the bucket: %w", err)
		}
		if at, err = open.Canonical(ctx, at); err != nil {
			return fmt.Errorf("open the bucket: %w", err)
		}
	}
	at.Provider = cmp.Or(at.Provider, "custom") // Config.Bucket needs no location
	s.here = clusterstate.BucketAt(at)
	s.store = objstore.WithObserver(objstore.WithTimeouts(store, s.bucketTimeouts),
		func(op string, took time.Duration, err error) { s.metrics.ObserveStorage(op, storageResult(err), took) })
	s.documents = objstore.WithLimit(s.store, maxBucketRequests)
	s.state = clusterstate.New(clusterstate.Options{Cluster: s.documents, Shard: s.documents, ShardID: s.opts.Shard})
	s.manager = shardconfig.New(s.state, s.opts.Shard, s.log)
	s.manager.SetTrial(s.tryConfig)
	s.manager.SetSigned(func() *clusterstate.State {
		if inUse := s.inUse.Load(); inUse != nil {
			return inUse.state
		}
		return s.opened.state // verifyApplied follows a trial that has passed
	})
	return nil
}

// storageResult returns the result of a request to the bucket, for metrics. It distinguishes a missing object and an
// unmet condition of a write from an error.
func storageResult(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, objstore.ErrNotFound):
		return "not_found"
	case errors.Is(err, objstore.ErrConflict):
		return "conflict"
	}
	return "error"
}

// fatalError is an error that a retry cannot fix.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }

func (e *fatalError) Unwrap() error { return e.err }

// prepare makes the server ready to lead. It retries until it succeeds or fails with a fatalError.
func (s *server) prepare(ctx context.Context) error {
	return s.repeat(ctx, func() error { return s.tryPrepare(ctx) }, s.reportNotReady)
}

// reportNotReady reports a failed try to start on the status page and in the log.
func (s *server) reportNotReady(err error, try int, wait time.Duration) {
	s.probe.NotReady(err.Error())
	s.log.Error("not ready", "error", err, "try", try, "again_in", wait.String())
}

// repeat calls the function `do` until `do` succeeds, returns a fatalError, or ctx ends. Before each pause, it calls
// the function `failed`.
func (s *server) repeat(ctx context.Context, do func() error,
	failed func(err error, try int, wait time.Duration)) error {
	for try := 1; ; try++ {
		err := do()
		var fatal *fatalError
		if err == nil || errors.As(err, &fatal) || ctx.Err() != nil {
			return err
		}
		wait := retryPause(try)
		failed(err, try, wait)
		if err := s.env.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// retryPause returns how long to wait after a failed try. The pause begins with 1 s, doubles up to maxRetryPause, and
// is shortened by up to a quarter at random.
func retryPause(try int) time.Duration {
	longest := reconnect.Backoff(time.Second, maxRetryPause, try)
	var b [1]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	return longest - longest/4*time.Duration(b[0])/256
}

func (s *server) tryPrepare(ctx context.Context) error {
	s.probe.NotReady("proving that the bucket honours conditional writes")
	if err := s.probeBucket(ctx, s.store); err != nil {
		return err
	}
	s.probe.NotReady("reading the shard's configuration, opening what it names")
	if err := s.manager.Load(ctx); err != nil {
		return err
	}
	s.useResources()
	s.identity = election.Identity{ID: s.opts.ID, Incarnation: s.incarnation, Machine: s.machine.ID,
		Addresses: s.ports.lock()}
	return nil
}
