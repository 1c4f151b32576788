package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/contract/record"
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
		func(op string, took time.Duration, err error) {
			s.metrics.ObserveStorage(op, storageResult(err), took)
			s.bucket.observe(op, took, err, s.env.Now())
		})
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

// Validate checks a configuration in a file or in the bucket. It prints all problems, one per line. It returns the exit
// status, which is 0 for a configuration that a server would apply.
func Validate(ctx context.Context, o Options, out, errOut io.Writer) int {
	name, body, err := document(ctx, o)
	if err != nil {
		fmt.Fprintf(errOut, "nstance-server: %v\n", err)
		return 1
	}
	parse := config.Parse
	if o.ValidateFile == "" {
		parse = config.ParseStored
	}
	shard, problems := parse(name, body)
	for _, problem := range problems {
		fmt.Fprintln(errOut, problem)
	}
	if errs := problems.Errors(); len(errs) > 0 {
		fmt.Fprintf(errOut, "%s: %d problems\n", name, len(errs))
		return 1
	}
	groups, _ := shard.WithDefaults().Merged(config.Groups{})
	fmt.Fprintf(out, "%s: valid: shard %s of cluster %s, %d groups\n", name, shard.Server.Shard, shard.Cluster.ID,
		len(groups))
	return 0
}

// document reads the configuration to check.
func document(ctx context.Context, o Options) (name string, body []byte, err error) {
	if o.ValidateFile != "" {
		body, err := os.ReadFile(o.ValidateFile)
		if err != nil {
			return "", nil, fmt.Errorf("--validate: %w", err)
		}
		return o.ValidateFile, body, nil
	}
	store, err := open.Open(ctx, o.Location)
	if err != nil {
		return "", nil, fmt.Errorf("open the bucket: %w", err)
	}
	store = objstore.WithTimeout(store, startupTimeout, minListTimeout)
	body, _, err = clusterstate.New(clusterstate.Options{Cluster: store, Shard: store, ShardID: o.Shard}).ReadConfig(
		ctx, o.Shard)
	return keys.Config(o.Shard), body, err
}

// homeLogEvery is the time between two log lines about a bucket that is not the home of the shard.
const homeLogEvery = time.Minute

// awaitHome waits until the bucket of this server is the home of the shard, or ctx ends. A copy of the bucket also has
// a copy of the lock. Once that lock has expired, a server that stands for election would lead, and would delete the
// VMs of the shard as orphans.
func (s *server) awaitHome(ctx context.Context) error {
	var logged time.Time
	for try := 1; ; try++ {
		err := s.state.CheckHome(ctx, s.here)
		var other *clusterstate.NotHomeError
		if errors.As(err, &other) && s.provedHome(ctx) {
			s.log.Info("the bucket got another name", "home", other.Home.String(), "name", s.here.String())
			err = s.state.NameHome(ctx, s.here)
		}
		if err == nil {
			s.metrics.NotHome.Set(0)
			s.endpoints.mu.Lock()
			defer s.endpoints.mu.Unlock()
			if s.endpoints.notHome = false; !s.endpoints.portTaken { // without that port the services are not served
				s.probe.Ready()
			}
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		if errors.As(err, &other) {
			s.metrics.NotHome.Set(1)
		}
		if other != nil || !s.probe.IsReady() { // a ready server stays ready while the bucket does not answer
			s.endpoints.mu.Lock()
			s.endpoints.notHome = true
			s.probe.NotReady(err.Error())
			s.endpoints.mu.Unlock()
		}
		if now := s.env.Now(); logged.IsZero() || now.Sub(logged) >= homeLogEvery {
			logged = now
			s.log.Error("not standing for election", "error", err)
		}
		if err := s.stay(err.Error(), func() error { return s.env.Sleep(ctx, retryPause(try)) }); err != nil {
			return err
		}
	}
}

// provedHome reports whether the leader of the shard has a link with this server. A leader accepts a link only after
// this server has proved that both use the same bucket. So this bucket is the home, under another name.
func (s *server) provedHome(ctx context.Context) bool {
	lock, _, err := s.state.ReadLock(ctx, s.opts.Shard)
	if err != nil || lock.Released {
		lock = record.Lock{}
	}
	holder := election.Peer{ID: lock.LeaderID, Incarnation: lock.Incarnation}
	if s.peers.Linked(holder) {
		return true
	}
	s.peers.Follow(lock)
	return false
}

// orphansConfirmed stores that a person has confirmed the orphans. After a restore, this ends the time in which orphans
// wait for a confirmation however few they are.
func (s *server) orphansConfirmed(ctx context.Context) {
	if err := s.state.EndOrphansWait(ctx); err != nil {
		s.log.Warn("the confirmation of orphans is not in the bucket: the next leader asks for it again", "error", err)
	}
}
