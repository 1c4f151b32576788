package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/contexts"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	keysources "github.com/nstance-kit/nstance/services/store/keyring/all"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	secrets "github.com/nstance-kit/nstance/services/store/secretstore/open"
)

// bucketFlags hold the location of a bucket.
type bucketFlags struct {
	location objstore.Location
	// shards names the buckets of shards that have their own. See [contexts.ParseShardStorage].
	shards  string
	timeout time.Duration
}

func (b *bucketFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	if cmd.HasSubCommands() {
		flags = cmd.PersistentFlags()
	}
	flags.StringVar(&b.location.Provider, "storage-provider", open.Names()[0],
		"kind of object store: "+strings.Join(open.Names(), " or "))
	flags.StringVar(&b.location.Bucket, "storage-bucket", "", "the bucket; for file, the directory")
	flags.StringVar(&b.location.Prefix, "storage-prefix", "", "prefix of all keys in the bucket")
	flags.StringVar(&b.location.Region, "storage-region", "", "region of the bucket; from the cloud's own settings "+
		"if not given")
	flags.StringVar(&b.location.Endpoint, "storage-endpoint", "", "URL of an object store that is not the cloud's own")
	flags.BoolVar(&b.location.PathStyle, "storage-path-style", false, "put the bucket into the path of URLs, not "+
		"into the host")
	flags.StringVar(&b.location.Profile, "storage-profile", "", "profile in the configuration files of the cloud's "+
		"tools; also for secrets and keys")
	flags.StringVar(&b.shards, "shard-storage", "", "buckets of shards that are not in --storage-bucket, as "+
		"shard=PROVIDER://BUCKET/PREFIX?region=…,…")
	flags.DurationVar(&b.timeout, "storage-timeout", storageTime, "how long the command may take with the bucket")
}

// errNoBucket says which flag to add.
var errNoBucket = &usageError{err: errors.New("--storage-bucket is missing"),
	hint: "add --storage-bucket BUCKET, set " + envBucket + ", or choose a context with nstance-admin context use"}

// open opens the bucket. If create is set, it creates a missing directory. The returned context ends after the time of
// --storage-timeout.
func (b *bucketFlags) open(ctx context.Context, create bool) (objstore.Store, context.Context, context.CancelFunc,
	error) {
	switch {
	case b.location.Bucket == "":
		return nil, nil, nil, errNoBucket
	case b.timeout <= 0:
		return nil, nil, nil, usagef("--storage-timeout %s is not more than zero", b.timeout)
	}
	if err := open.Validate(b.location); err != nil {
		return nil, nil, nil, usagef("%w", err)
	}
	if b.location.Provider == "file" && !create {
		if _, err := os.Stat(b.location.Bucket); err != nil {
			return nil, nil, nil, withHint(fmt.Errorf("open bucket: %w", err),
				"for --storage-provider file, --storage-bucket is a directory; nstance-admin cluster init makes it")
		}
	}
	store, err := open.Open(ctx, b.location)
	if err != nil {
		return nil, nil, nil,
			withHint(err,
				"check --storage-provider, --storage-bucket and the environment; nstance-admin --help lists "+
					"its variables")
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	return objstore.WithProbe(store, probeKey()), ctx, cancel, nil
}

// of returns the flags of the bucket that has the documents of a shard. own reports whether it is not the cluster's.
func (b bucketFlags) of(shard string) (_ bucketFlags, own bool, err error) {
	shards, err := contexts.ParseShardStorage(b.shards)
	if err != nil {
		return b, false, &usageError{err: fmt.Errorf("--shard-storage: %w", err),
			hint: "--shard-storage us-west-2a=PROVIDER://BUCKET,us-west-2b=PROVIDER://BUCKET/PREFIX"}
	}
	cluster := b.location
	if at, ok := shards[shard]; ok {
		b.location = objstore.Location{Provider: at.Provider, Bucket: at.Bucket, Prefix: at.Prefix, Region: at.Region,
			Endpoint: at.Endpoint, PathStyle: at.PathStyle, Profile: at.Profile}
	}
	return b, b.location != cluster, nil
}

// opener returns a function that opens the bucket of a shard. It opens each bucket once. "cluster" is that of the
// cluster.
func (b bucketFlags) opener(cluster objstore.Store) func(ctx context.Context, shard string) (objstore.Store, error) {
	var mu sync.Mutex
	opened := map[objstore.Location]objstore.Store{}
	return func(ctx context.Context, shard string) (objstore.Store, error) {
		at, own, err := b.of(shard)
		if err != nil || !own {
			return cluster, err
		}
		mu.Lock()
		defer mu.Unlock()
		if store := opened[at.location]; store != nil {
			return store, nil
		}
		store, _, cancel, err := at.open(ctx, false)
		if err != nil {
			return nil, fmt.Errorf("bucket of shard %s: %w", shard, err)
		}
		cancel() // each use has its own time limit
		opened[at.location] = store
		return store, nil
	}
}

// openOwn opens the buckets of the shards that have their own.
func (b bucketFlags) openOwn(ctx context.Context) (map[string]objstore.Store, error) {
	shards, err := contexts.ParseShardStorage(b.shards)
	if err != nil {
		_, _, err = b.of("")
		return nil, err
	}
	stores, open := map[string]objstore.Store{}, b.opener(nil)
	for shard := range shards {
		store, err := open(ctx, shard)
		if err != nil {
			return nil, withHint(err, "nothing was changed; correct the shard's part of --shard-storage, or give the "+
				"credentials for this bucket")
		}
		if store != nil {
			stores[shard] = store
		}
	}
	return stores, nil
}

// describe names a bucket for a person.
func (b bucketFlags) describe() string { return b.location.Provider + " bucket " + b.location.Bucket }

// probeKey returns a new object key for the probe that tests whether a bucket honors conditional writes.
func probeKey() string { return keys.Probe(keys.ClusterProbeShard, strings.ToLower(rand.Text())) }

// secretFlags hold the location of the cluster's secrets and of the encryption keys.
type secretFlags struct {
	bucketFlags
	cluster                   string
	provider, prefix, project string
	keyProvider, keySource    string
	oldKeys                   []string
}

func (s *secretFlags) add(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&s.cluster, "cluster-id", "", "the cluster; taken from cluster/ca.crt in the bucket if not given")
	s.bucketFlags.add(cmd)
	flags.StringVar(&s.provider, "secrets-provider", config.ObjectStorage,
		"where secrets are kept: "+strings.Join(secrets.Names(), ", "))
	flags.StringVar(&s.prefix, "secrets-prefix", "", "what the names of secrets begin with, if a service keeps them")
	flags.StringVar(&s.project, "secrets-project", "", "project of the secrets, for "+
		strings.Join(config.SecretsStoresWithProject(), ", "))
	flags.StringVar(&s.keyProvider, "key-provider", config.EnvKeySource,
		"where the encryption key is: "+strings.Join(keyring.Names(keysources.Sources(cloud.Access{})), ", "))
	flags.StringVar(&s.keySource, "key-source", "", "name of the variable (default "+config.DefaultKeyVariable+
		"), path of the file, or name or ARN of the secret or parameter")
	flags.StringArrayVar(&s.oldKeys, "old-key", nil,
		"an earlier encryption key, for secrets sealed with it, as PROVIDER:SOURCE (env:VARIABLE, file:PATH, …); "+
			"may be repeated")
}

// cluster is an opened cluster.
type cluster struct {
	id     string
	bucket objstore.Store
	isOwn  bool                      // the bucket is a shard's own one, without the documents of the cluster
	own    map[string]objstore.Store // by shard, the buckets of shards that have their own
	state  *clusterstate.State
	// secrets is nil if the command opens and verifies no sealed or signed object.
	secrets secretstore.Store
	// sealed reports whether the secrets are sealed objects in the bucket.
	sealed bool
	ring   keyring.Ring
}

// need describes what a command needs from a cluster.
type need struct {
	key bool // the encryption key
	own bool // the buckets of the shards that have their own
	id  bool // --cluster-id, because there is no ca.crt yet that names the cluster
}

// withCluster opens the cluster that the flags name and calls the function `do` with it.
func (a *app) withCluster(ctx context.Context, s *secretFlags, needs need,
	do func(ctx context.Context, c *cluster) error) error {
	if s.provider == config.ObjectStorage && s.prefix != "" {
		return usagef(
			"--secrets-prefix %q: secrets in object storage have no prefix but the bucket's: --storage-prefix",
			s.prefix)
	}
	if s.cluster != "" {
		if err := ident.ValidateClusterName(s.cluster); err != nil {
			return usagef("--cluster-id: %w", err)
		}
	} else if needs.id {
		return usagef("--cluster-id is missing")
	}
	ring, err := s.ring(ctx, needs.key && s.provider == config.ObjectStorage)
	if err != nil {
		return err
	}
	bucket, ctx, cancel, err := s.open(ctx, needs.id)
	if err != nil {
		return err
	}
	defer cancel()
	return during(a, "working on "+s.location.Bucket, func() error {
		var own map[string]objstore.Store
		if needs.own {
			var err error
			if own, err = s.openOwn(ctx); err != nil {
				return err
			}
		}
		c, err := a.openCluster(ctx, s, bucket, own, ring)
		if err != nil {
			return err
		}
		return do(ctx, c)
	})
}

// openCluster opens the cluster in a bucket. Some shards may have their own buckets.
func (a *app) openCluster(ctx context.Context, s *secretFlags, bucket objstore.Store, own map[string]objstore.Store,
	ring keyring.Ring) (*cluster, error) {
	options := clusterstate.Options{Cluster: bucket, Shard: bucket, Elsewhere: own, ClusterID: s.cluster, Now: a.Now,
		Rand: a.Rand, ForEach: tasks.ForEach}
	var err error
	if options.ClusterID == "" {
		if options.ClusterID, err = clusterOf(ctx, clusterstate.New(options)); err != nil {
			return nil, err
		}
	}
	c := &cluster{id: options.ClusterID, bucket: bucket, own: own, sealed: s.provider == config.ObjectStorage,
		ring: ring}
	settings := config.Secrets{Provider: s.provider, Prefix: s.prefix, ProjectID: s.project}
	if c.secrets, err = secrets.Open(ctx, settings, secretstore.Options{Bucket: bucket, Cluster: c.id, Ring: ring,
		Rand: a.Rand, Access: open.Access(s.location)}); err != nil {
		return nil, usagef("--secrets-provider: %w", err)
	}
	options.Secrets = c.secrets
	c.state = clusterstate.New(options)
	return c, nil
}

// inCluster is like withCluster, but for a function that returns a result.
func inCluster[T any](ctx context.Context, a *app, s *secretFlags, needs need,
	do func(ctx context.Context, c *cluster) (T, error)) (result T, err error) {
	err = a.withCluster(ctx, s, needs, func(ctx context.Context, c *cluster) (err error) {
		result, err = do(ctx, c)
		return err
	})
	return result, err
}

// ring reads the encryption keys. If needed is false, it reads nothing and returns no keys.
func (s *secretFlags) ring(ctx context.Context, needed bool) (keyring.Ring, error) {
	if !needed {
		return keyring.Ring{}, nil
	}
	from := config.Secrets{EncryptionKey: &config.KeySource{Provider: s.keyProvider, Source: s.keySource}}
	for _, text := range s.oldKeys {
		provider, source, ok := strings.Cut(text, ":")
		if !ok || source == "" {
			return keyring.Ring{},
				usagef("--old-key: want PROVIDER:SOURCE, such as env:VARIABLE or file:PATH")
		}
		from.OldEncryptionKeys = append(from.OldEncryptionKeys, config.KeySource{Provider: provider, Source: source})
	}
	ring, err := keyring.Load(ctx, from, keysources.Sources(open.Access(s.location)))
	if err != nil {
		return keyring.Ring{},
			withHint(err,
				"the cluster's encryption key has 32 bytes, raw or base64: set %s, or say where it is with "+
					"--key-provider and --key-source", config.DefaultKeyVariable)
	}
	return ring, nil
}

// clusterOf reads the cluster's ID from its CA certificate, without a check of the signature. A forged ID does no harm:
// the sealed objects can be opened only with the true ID.
func clusterOf(ctx context.Context, state *clusterstate.State) (string, error) {
	bundle, err := state.UnverifiedCABundle(ctx)
	if errors.Is(err, objstore.ErrNotFound) {
		return "", withHint(fmt.Errorf("there is no cluster in this bucket: %w", err),
			"check --storage-bucket and --storage-prefix; nstance-admin cluster init --cluster-id ID makes a "+
				"cluster, and so do the Terraform provider and a shard's first leader")
	}
	if err != nil {
		return "", err
	}
	for _, uri := range bundle[0].URIs {
		if id := spiffeDomain(uri); ident.ValidateClusterName(id) == nil {
			return id, nil
		}
	}
	return "", usagef("the CA's certificate does not name the cluster: give --cluster-id")
}

func spiffeDomain(uri *url.URL) string {
	if uri.Scheme != "spiffe" {
		return ""
	}
	return uri.Host
}
