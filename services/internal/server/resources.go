package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/highwater"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	keysources "github.com/nstance-kit/nstance/services/store/keyring/all"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	secrets "github.com/nstance-kit/nstance/services/store/secretstore/open"
)

// trialTimeout is the timeout for the trial of a configuration while the server runs with another one.
const trialTimeout = 30 * time.Second

// resources are what a server opens for a configuration. Only a restart changes them.
type resources struct {
	shard   *config.Shard
	machine ownMachine
	state   *clusterstate.State
	secrets secretstore.Store
	ports   ports
	// clusterBucket knows whether the cluster's bucket answers. It is nil if that is the shard's bucket.
	clusterBucket *bucketWatch
	// marks are the highest versions of the cluster's documents and secrets that this server has read, or has found in
	// the lock.
	marks *highwater.Marks
}

// tryConfig is the function that the Manager calls to try a configuration on this server. If the server is still
// starting, tryConfig keeps the opened resources for useResources.
func (s *server) tryConfig(ctx context.Context, shard *config.Shard, applied bool) error {
	inUse := s.inUse.Load()
	if inUse == nil {
		opened, err := s.openResources(ctx, shard, applied)
		if err == nil {
			s.opened = opened
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	if !shardconfig.InPlace(inUse.shard, shard) {
		_, err := s.openResources(ctx, shard, applied)
		return err
	}
	if applied {
		return nil
	}
	if err := inUse.machine.verify(ctx, shard); infra.ClassOf(err) == infra.Invalid {
		return err
	}
	return nil // a failed check is repeated when the configuration is in force
}

// useResources puts the opened resources in use.
func (s *server) useResources() {
	r := s.opened
	s.machine, s.state, s.secrets, s.ports = r.machine, r.state, r.secrets, r.ports
	s.metrics.SetCluster(r.shard.Cluster.ID, s.opts.Shard)
	if s.opts.HostID && r.machine.Named && r.machine.ID != "" {
		s.opts.ID = r.machine.ID
		s.log.Info("this server's ID is its machine's", "id", r.machine.ID)
	}
	s.inUse.Store(r)
}

// openResources checks the configuration against the command line, and opens everything that the configuration needs.
// If `applied` is true, a leader has run with this configuration.
func (s *server) openResources(ctx context.Context, shard *config.Shard, applied bool) (*resources, error) {
	if err := s.checkFlags(shard); err != nil {
		return nil, err
	}
	r := &resources{shard: shard}
	var err error
	if r.ports, err = portsOf(shard, s.opts); err != nil {
		return nil, err
	}
	if !applied {
		if err := s.checkBind(ctx, r.ports); err != nil {
			return nil, err
		}
	}
	if r.machine, err = s.openProvider(ctx, shard, applied); err != nil {
		return nil, err
	}
	if err := s.openCluster(ctx, shard, applied, r); err != nil {
		return nil, err
	}
	return r, nil
}

// checkFlags checks that the configuration agrees with the flags of the command line.
func (s *server) checkFlags(shard *config.Shard) error {
	if shard.Server.Shard != s.opts.Shard {
		return fmt.Errorf("server.shard: the configuration is of shard %q, this server's --shard is %q",
			shard.Server.Shard, s.opts.Shard)
	}
	switch network, flag := shard.Server.LeaderNetwork, s.opts.LeaderInterface; {
	case flag == "":
	case network == nil:
		return fmt.Errorf("server.leader_network: is missing, but this server's --leader-interface is %q", flag)
	case network.InterfaceID != interfaceID(flag):
		return otherInterfaceError{network.InterfaceID, flag}
	}
	return nil
}

// otherInterfaceError means that the configuration gives the leader a network interface for which this machine is not
// prepared. New servers with that interface must replace this one.
type otherInterfaceError struct{ configured, flag string }

func (e otherInterfaceError) Error() string {
	return fmt.Sprintf("server.leader_network.interface_id: is %q, this server's --leader-interface is %q",
		e.configured, e.flag)
}

// Is implements the interface of errors.Is.
func (otherInterfaceError) Is(target error) bool { return target == shardconfig.ErrForSuccessor }

// interfaceID returns the ID of a network interface. text is the ID itself or its ARN, arn:…:network-interface/{ID}.
func interfaceID(text string) string {
	if !strings.HasPrefix(text, "arn:") {
		return text
	}
	_, id, _ := strings.Cut(text, ":network-interface/")
	return id
}

// openCluster opens the cluster's bucket, keys and secrets, and stores them in r. If the cluster has a CA, openCluster
// checks that the CA can be read. A new configuration is refused if it names another bucket or another store of
// secrets, in which the CA of a cluster in use is missing.
func (s *server) openCluster(ctx context.Context, shard *config.Shard, applied bool, r *resources) error {
	cluster := s.documents
	var access cloud.Access
	if shard.Cluster.Storage != nil {
		var at objstore.Location
		at, access = clusterBucket(shard)
		store := s.cfg.ClusterBucket
		if store == nil {
			var err error
			if store, err = open.Open(ctx, at); err != nil {
				return fmt.Errorf("cluster.storage: %w", err)
			}
		}
		r.clusterBucket = &bucketWatch{name: "the cluster's bucket"}
		cluster = objstore.WithObserver(objstore.WithTimeouts(store, s.bucketTimeouts),
			func(op string, took time.Duration, err error) {
				r.clusterBucket.observe(op, took, err, s.env.Now())
			})
		// The cluster's bucket needs conditional writes too, because the first server of the cluster creates the CA in
		// it.
		if err := s.probeBucket(ctx, cluster); err != nil {
			return fmt.Errorf("cluster.storage: %w", err)
		}
	}
	sources := s.cfg.KeySources
	if sources == nil {
		sources = keysources.Sources(access)
	}
	ring, err := keyring.Load(ctx, shard.Cluster.Secrets, sources)
	if err != nil {
		return fmt.Errorf("cluster.secrets: %w", err)
	}
	if ring.IsText {
		s.log.Warn("the encryption key is a text of 32 characters, which may be guessed: rotate it to 32 random bytes",
			"make", "openssl rand -base64 32")
	}
	r.marks = &highwater.Marks{Scope: shard.Cluster.ID}
	if err := s.readMarks(ctx, r.marks); err != nil {
		return err
	}
	if r.secrets, err = secrets.Open(ctx, shard.Cluster.Secrets, secretstore.Options{Bucket: cluster,
		Cluster: shard.Cluster.ID, Ring: ring, Rand: rand.Reader, Marks: r.marks, Access: access}); err != nil {
		return fmt.Errorf("cluster.secrets.provider: %w", err)
	}
	r.state = clusterstate.New(clusterstate.Options{Cluster: cluster, Shard: s.documents, ClusterID: shard.Cluster.ID,
		ShardID: s.opts.Shard, Secrets: r.secrets, Marks: r.marks, ForEach: s.env.ForEach})
	if err := r.state.CheckCA(ctx); err != nil && !(applied && errors.Is(err, clusterstate.ErrCALost)) {
		return fmt.Errorf("read the cluster's CA: %w", err)
	}
	return nil
}

// clusterBucket returns the location of the cluster's bucket. If the servers take on an identity in the bucket's cloud,
// access is for the secrets and encryption keys that are in this cloud.
func clusterBucket(shard *config.Shard) (at objstore.Location, access cloud.Access) {
	storage := shard.Cluster.Storage
	at = objstore.Location{Provider: storage.Provider, Bucket: storage.Bucket, Region: storage.Region,
		Prefix: storage.Prefix, Endpoint: storage.Endpoint}
	if storage.Identity == nil {
		return at, access
	}
	identity := storage.Identity
	at.Profile = identity.Profile
	if identity.RoleARN != "" {
		at.AssumeRole = cloud.Role{ARN: identity.RoleARN, SessionName: "nstance-" + shard.Server.Shard,
			WithToken: config.HasIdentityTokens(shard.Server.Provider.Kind)}
	}
	at.Federation = cloud.Federation{PoolProvider: identity.PoolProvider, ServiceAccount: identity.ServiceAccount}
	return at, open.Access(at)
}

// readMarks raises each mark to the version that the lock contains for it. So the server refuses objects that were
// rolled back while no server ran. readMarks ignores a lock that cannot be decoded, because the server never takes over
// such a lock.
func (s *server) readMarks(ctx context.Context, marks *highwater.Marks) error {
	object, err := s.documents.Get(ctx, keys.Leader(s.opts.Shard))
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the lock: %w", err)
	}
	lock, err := record.DecodeLock(object.Body)
	if err != nil {
		s.log.Warn("cannot read the marks in the lock: an earlier version of a secret may be accepted", "error", err)
		return nil
	}
	return marks.Merge(lock.Marks)
}

// probeBucket checks that a store honours conditional writes. It fails with a fatalError if the store ignores them.
func (s *server) probeBucket(ctx context.Context, store objstore.Store) error {
	err := objstore.Probe(ctx, store, keys.Probe(s.opts.Shard, s.incarnation))
	if err == nil {
		return nil
	}
	err = fmt.Errorf("check the bucket: %w", err)
	if errors.Is(err, objstore.ErrUnconditional) {
		return &fatalError{err}
	}
	return err
}
