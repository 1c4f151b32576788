// Package bucket connects the provider to the bucket, the secrets store and the encryption keys. Resources receive a
// [Connection] when Terraform configures the provider.
//
// Invariant: the package opens and reads nothing until a resource needs it. So a plan needs neither the bucket nor a
// key, and the provider's settings may be unknown until the apply.
package bucket

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"golang.org/x/sync/errgroup"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	keysources "github.com/nstance-kit/nstance/services/store/keyring/all"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	secretstores "github.com/nstance-kit/nstance/services/store/secretstore/open"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
)

// Time limits of one request to the store and of one listing.
const (
	requestTimeout = 30 * time.Second
	listTimeout    = 2 * time.Minute
)

// ErrUnknown means that a setting of the provider depends on a value that is known only after the apply.
var ErrUnknown = errors.New("the provider's settings depend on resources that are not applied yet")

// ErrNotSet means that the provider has no `storage`.
var ErrNotSet = errors.New("the provider has no storage")

// ErrKey means that an encryption key cannot be read from the source in the provider's settings.
var ErrKey = errors.New("there is no usable encryption key")

// Settings holds the bucket and key settings of the provider.
type Settings struct {
	// Storage is the location of the bucket, or nil if it is not set.
	Storage        *objstore.Location
	StorageUnknown bool
	// Secrets has the settings of the secrets store and the sources of the encryption keys. An empty Provider means
	// that the bucket holds the secrets.
	Secrets config.Secrets
	// StoreUnknown means that the secrets store is not known, and KeysUnknown that the encryption keys are not known.
	StoreUnknown, KeysUnknown bool
}

// Connection gives all resources of one provider configuration access to the bucket. It is safe for concurrent use.
type Connection struct {
	settings Settings

	mu      sync.Mutex
	store   objstore.Store
	service secretstore.Store // nil if the secrets are in the bucket
	claimed map[string]bool   // keys that a resource of this run creates
}

// New returns a connection. It performs no I/O.
func New(settings Settings) *Connection { return &Connection{settings: settings} }

// Settings returns the settings of the connection. The caller must not change them.
func (c *Connection) Settings() Settings { return c.settings }

// Of returns the connection from the data that Terraform gives to a resource. It returns nil while Terraform only
// validates.
func Of(data any) *Connection {
	if holder, ok := data.(interface{ Bucket() *Connection }); ok {
		return holder.Bucket()
	}
	return nil
}

// Claim reports whether the caller is the first in this run that creates the object with the given key. Two resources
// of one object would otherwise both believe that they created it, because they run at the same time.
func (c *Connection) Claim(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.claimed[key] {
		return false
	}
	if c.claimed == nil {
		c.claimed = map[string]bool{}
	}
	c.claimed[key] = true
	return true
}

// Known reports whether the location of the bucket is known.
func (c *Connection) Known() bool { return c != nil && !c.settings.StorageUnknown }

// Store returns the bucket and opens it on the first call. Before the first write, the store verifies that the bucket
// honors conditional writes. Store returns [ErrUnknown] or [ErrNotSet] if the bucket is unknown or not set.
func (c *Connection) Store(ctx context.Context) (objstore.Store, error) {
	if !c.Known() {
		return nil, ErrUnknown
	}
	if c.settings.Storage == nil {
		return nil, ErrNotSet
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.store == nil {
		// The store is used after this call ends, so the end of ctx must not cancel it.
		store, err := open.Open(context.WithoutCancel(ctx), *c.settings.Storage)
		if err != nil {
			return nil, err
		}
		probe := keys.Probe(keys.ClusterProbeShard, strings.ToLower(rand.Text()))
		c.store = objstore.WithProbe(objstore.WithTimeout(store, requestTimeout, listTimeout), probe)
	}
	return c.store, nil
}

// Place describes the location of an object for messages: the bucket and the key with its prefix.
func (c *Connection) Place(key string) string {
	if !c.Known() || c.settings.Storage == nil {
		return key
	}
	at := c.settings.Storage
	place := fmt.Sprintf("%s bucket %q", at.Provider, at.Bucket)
	if at.Provider == "file" {
		place = "directory " + at.Bucket
	}
	if at.Endpoint != "" {
		place += " at " + at.Endpoint
	}
	if prefix := strings.TrimSuffix(at.Prefix, "/"); prefix != "" {
		key = prefix + "/" + key
	}
	return place + ", " + key
}

// Ring reads the encryption keys from the sources in the provider's settings. It returns [ErrUnknown] if the settings
// are not known, and [ErrKey] if a key cannot be read.
func (c *Connection) Ring(ctx context.Context) (keyring.Ring, error) {
	if c.settings.KeysUnknown {
		return keyring.Ring{}, ErrUnknown
	}
	ring, err := keyring.Load(ctx, c.settings.Secrets, keysources.Sources(c.Access()))
	if err != nil {
		return keyring.Ring{}, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return ring, nil
}

// Access returns how to call the services of the bucket's cloud.
func (c *Connection) Access() cloud.Access {
	if c.settings.Storage == nil {
		return cloud.Access{}
	}
	return open.Access(*c.settings.Storage)
}

// Key reads the encryption key from one source. It returns [ErrKey] if the key cannot be read.
func (c *Connection) Key(ctx context.Context, source config.KeySource) (envelope.Key, error) {
	ring, err := keyring.Load(ctx, config.Secrets{EncryptionKey: &source}, keysources.Sources(c.Access()))
	if err != nil {
		return envelope.Key{}, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return ring.Current, nil
}

// Sealed reports whether the secrets are sealed objects in the bucket. Otherwise a service holds the secrets. While the
// settings are unknown, the result has no meaning.
func (c *Connection) Sealed() bool {
	return c.settings.Secrets.Provider == "" || c.settings.Secrets.Provider == config.ObjectStorage
}

// Secrets returns the secrets of a cluster. The ring is needed only if the secrets are in the bucket.
func (c *Connection) Secrets(ctx context.Context, cluster string, ring keyring.Ring) (secretstore.Store, error) {
	if c.settings.StoreUnknown {
		return nil, ErrUnknown
	}
	if c.Sealed() {
		return c.SealedSecrets(ctx, cluster, ring)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.service == nil {
		store, err := secretstores.Open(ctx, c.settings.Secrets, secretstore.Options{Access: c.Access()})
		if err != nil {
			return nil, err
		}
		c.service = store
	}
	return c.service, nil
}

// SealedSecrets returns the secrets of a cluster whose secrets are in the bucket.
func (c *Connection) SealedSecrets(ctx context.Context, cluster string, ring keyring.Ring) (*secretstore.Objects,
	error) {
	store, err := c.Store(ctx)
	if err != nil {
		return nil, err
	}
	return secretstore.NewObjects(secretstore.Options{Bucket: store, Cluster: cluster, Ring: ring, Rand: rand.Reader}),
		nil
}

// HasSecret reports whether there is a secret. It does not read the secret.
func (c *Connection) HasSecret(ctx context.Context, cluster, name string) (bool, error) {
	secrets, err := c.Secrets(ctx, cluster, keyring.Ring{})
	if err != nil {
		return false, err
	}
	names, err := secrets.List(ctx)
	return slices.Contains(names, name), err
}

// KeyID returns the ID of the key that seals a secret, or null if a service holds the secrets. It needs no key. If the
// sealed secret cannot be read, KeyID returns `known`, the ID in the Terraform state. So a plan works without
// permission to read secrets.
func (c *Connection) KeyID(ctx context.Context, name string, known types.String) (types.String, error) {
	if !c.Sealed() {
		return types.StringNull(), nil
	}
	store, err := c.Store(ctx)
	if err != nil {
		return types.StringNull(), err
	}
	object, err := store.Get(ctx, keys.ClusterSecret(name))
	if err != nil {
		if known.ValueString() != "" && !errors.Is(err, objstore.ErrNotFound) {
			return known, nil
		}
		return types.StringNull(), err
	}
	id, err := envelope.KeyID(object.Body)
	if errors.Is(err, envelope.ErrFormat) {
		err = fmt.Errorf("%w: %w", clusterstate.ErrDamaged, err)
	}
	return types.StringValue(id.String()), err
}

// glanceTimeout bounds what a plan reads only to warn earlier than the apply.
const glanceTimeout = 10 * time.Second

// Glance calls read with a short time limit if the bucket is known. The caller ignores errors: a plan must work without
// the bucket.
func (c *Connection) Glance(ctx context.Context, read func(ctx context.Context)) {
	if !c.Known() || c.settings.Storage == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, glanceTimeout)
	defer cancel()
	read(ctx)
}

// CheckCluster returns an error that matches [clusterstate.ErrForeign] if the CA in the bucket is that of another
// cluster. It returns nil if there is no CA yet, or if the CA cannot be read.
func (c *Connection) CheckCluster(ctx context.Context, cluster string) error {
	state, err := c.Shard(ctx, cluster, "")
	if err != nil {
		return nil //nolint:nilerr // the caller's own access to the bucket reports it
	}
	bundle, err := state.UnverifiedCABundle(ctx) // it only shows whether this is the same cluster
	if err != nil {
		return nil //nolint:nilerr // as above
	}
	for _, cert := range bundle {
		if err := authority.CheckCluster(cert, cluster); err != nil {
			return fmt.Errorf("%w: %s: %w", clusterstate.ErrForeign, keys.ClusterCA(), err)
		}
	}
	return nil
}

// ForeignCluster returns the diagnostic for an error of [Connection.CheckCluster]. `at` is the attribute with the name
// of the cluster.
func (c *Connection) ForeignCluster(cluster string, at path.Path, err error) diag.Diagnostic {
	return diagnostic.Failure{
		What: fmt.Sprintf("The bucket is not that of cluster %s", cluster), Where: c.Place(keys.ClusterCA()), Why: err,
		Do: "Correct the name of the cluster, or the bucket and its prefix in the provider's storage.",
	}.At(at)
}

// SecretPlace describes the location of a secret for messages.
func (c *Connection) SecretPlace(name string) string {
	if c.Sealed() {
		return c.Place(keys.ClusterSecret(name))
	}
	return fmt.Sprintf("%s, %s%s", c.settings.Secrets.Provider, c.settings.Secrets.Prefix, name)
}

// Cluster returns the state of a cluster, including its secrets.
func (c *Connection) Cluster(ctx context.Context, cluster string, ring keyring.Ring) (*clusterstate.State, error) {
	secrets, err := c.Secrets(ctx, cluster, ring)
	if err != nil {
		return nil, err
	}
	return c.state(ctx, clusterstate.Options{ClusterID: cluster, Secrets: secrets})
}

// KeyedCluster is [Connection.Cluster] with the encryption keys of the provider's settings.
func (c *Connection) KeyedCluster(ctx context.Context, cluster string) (*clusterstate.State, error) {
	ring, err := c.Ring(ctx)
	if err != nil {
		return nil, err
	}
	return c.Cluster(ctx, cluster, ring)
}

// Shard returns the state of a shard, without secrets.
func (c *Connection) Shard(ctx context.Context, cluster, shard string) (*clusterstate.State, error) {
	return c.state(ctx, clusterstate.Options{ClusterID: cluster, ShardID: shard})
}

func (c *Connection) state(ctx context.Context, options clusterstate.Options) (*clusterstate.State, error) {
	store, err := c.Store(ctx)
	if err != nil {
		return nil, err
	}
	options.Cluster, options.Shard, options.ForEach = store, store, ForEach
	return clusterstate.New(options), nil
}

// ForEach calls fn for 0 to n-1 with at most `limit` calls at the same time. It waits for all calls and returns the
// first error.
func ForEach(ctx context.Context, n, limit int, fn func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(limit)
	for i := range n {
		group.Go(func() error { return fn(ctx, i) })
	}
	return group.Wait()
}

// Advice returns the user's next step for an error of the bucket or its keys.
func Advice(err error) string {
	switch {
	case errors.Is(err, ErrUnknown):
		return "First apply the resources that the provider's storage, secrets and encryption_key depend on, for " +
			"example with -target, or name them in depends_on."
	case errors.Is(err, ErrNotSet):
		return fmt.Sprintf("Set storage in the provider's configuration, such as "+
			`storage = { provider = %q, bucket = "my-bucket" }.`, open.Names()[0])
	case errors.Is(err, ErrKey):
		return "Set the variable, write the file, or make the secret or parameter that the provider's " +
			"encryption_key names, and check that you may read it. It holds the key " +
			"that the servers use: 32 bytes, raw or base64."
	case errors.Is(err, envelope.ErrUnknownKey), errors.Is(err, envelope.ErrAuthentication):
		return "Give the key that sealed it: as the provider's encryption_key, or among its old_encryption_keys if " +
			"the key has changed since."
	case errors.Is(err, secretstore.ErrNoKey):
		return `Set encryption_key in the provider's configuration to the same key that the servers use, such as ` +
			`encryption_key = { provider = "env" } for ` + config.DefaultKeyVariable + `.`
	case errors.Is(err, clusterstate.ErrForeign):
		return "Check the bucket and its prefix in the provider's storage: another cluster's or shard's documents " +
			"are there."
	case errors.Is(err, objstore.ErrUnconditional):
		return "Nothing was written. Use a store with conditional writes, or a newer version of this one."
	}
	if hint := open.Hint(err); hint != "" {
		return strings.ToUpper(hint[:1]) + hint[1:] + "."
	}
	switch {
	case objstore.Interrupted(err):
		return ""
	case errors.Is(err, objstore.ErrIndeterminate):
		return "It is unknown whether the write happened. Check that the store can be reached, and apply again: the " +
			"next run reads what is there."
	}
	return "Check the provider's storage (bucket, region, endpoint, prefix, credentials) and encryption_key, that " +
		"the store can be reached from here and that you may read and write there; then run this again."
}

// CheckHome returns a *[clusterstate.NotHomeError] if no server leads the shard in this bucket, because it is a copy of
// the shard's home. It returns nil if the home cannot be read, or if only its endpoint differs: servers may reach the
// same bucket at another endpoint.
func (c *Connection) CheckHome(ctx context.Context, shard string) error {
	state, err := c.Shard(ctx, "", shard)
	if err != nil {
		return nil //nolint:nilerr // the caller's own access to the bucket reports it
	}
	home, _, err := state.ReadHome(ctx)
	if err != nil {
		return nil //nolint:nilerr // there may be no home yet, or this user may not read it
	}
	at, err := open.Canonical(ctx, *c.settings.Storage)
	if err != nil {
		return nil //nolint:nilerr // as above
	}
	if here := clusterstate.BucketAt(at); !home.MayBe(here) {
		return &clusterstate.NotHomeError{Shard: shard, Home: home, Here: here}
	}
	return nil
}

// NotHome describes an error of [Connection.CheckHome] to users. If err is not a *[clusterstate.NotHomeError], the
// result is false.
func (c *Connection) NotHome(err error) (failure diagnostic.Failure, ok bool) {
	var other *clusterstate.NotHomeError
	if !errors.As(err, &other) {
		return failure, false
	}
	command := "nstance-admin cluster restore"
	if other.Here.Provider != open.Names()[0] {
		command += " --storage-provider " + other.Here.Provider
	}
	command += " --storage-bucket " + other.Here.Name
	if other.Here.Prefix != "" {
		command += " --storage-prefix " + other.Here.Prefix
	}
	return diagnostic.Failure{
		What: "The bucket is not the home of shard " + other.Shard, Where: c.Place(keys.Home(other.Shard)),
		Why: fmt.Errorf("the home is %s, but this is %s: no server leads here, and nothing that is written here takes "+
			"effect", other.Home, other.Here),
		Do: "To manage the shard, set the provider's storage to its home. To make this bucket the home, first stop " +
			"the servers that use the present home, then run " + command + ".",
	}, true
}

// location is the part of the bucket's location that a private state remembers. The endpoint is not part of it, because
// the same bucket may have several.
type location struct{ Provider, Bucket, Prefix string }

func (l location) String() string {
	text := fmt.Sprintf("%s bucket %q", l.Provider, l.Bucket)
	if l.Provider == "file" {
		text = "directory " + l.Bucket
	}
	if l.Prefix != "" {
		text += ", prefix " + l.Prefix
	}
	return text
}

// memory is the private state of a resource.
type memory interface {
	GetKey(ctx context.Context, key string) ([]byte, diag.Diagnostics)
	SetKey(ctx context.Context, key string, value []byte) diag.Diagnostics
}

// locationKey is the key of the [location] in a private state.
const locationKey = "location"

// Remember stores the bucket's location in the private state of a resource. Call it after a successful create.
func (c *Connection) Remember(ctx context.Context, private memory) diag.Diagnostics {
	at := c.location()
	if at == nil {
		return nil
	}
	text, err := json.Marshal(at)
	if err != nil {
		return diag.Diagnostics{diag.NewErrorDiagnostic("Cannot store the location of the bucket", err.Error())}
	}
	return private.SetKey(ctx, locationKey, text)
}

func (c *Connection) location() *location {
	if !c.Known() || c.settings.Storage == nil {
		return nil
	}
	at := c.settings.Storage
	return &location{at.Provider, at.Bucket, strings.Trim(at.Prefix, "/")}
}

// AfterRead completes the read of a resource. If the resource was not found, and was in another bucket before,
// AfterRead adds an error. Otherwise the next apply would make a second one, while the first one still has servers
// and VMs. If the resource was found, AfterRead remembers the bucket.
func (c *Connection) AfterRead(ctx context.Context, resp *resource.ReadResponse) {
	at := c.location()
	if at == nil {
		return
	}
	missing := resp.State.Raw.IsNull()
	if !missing && !resp.Diagnostics.HasError() {
		resp.Diagnostics.Append(c.Remember(ctx, resp.Private)...)
		return
	}
	text, diags := resp.Private.GetKey(ctx, locationKey)
	var before location
	if diags.HasError() || json.Unmarshal(text, &before) != nil || before == *at {
		return
	}
	why := fmt.Errorf("the provider's storage is now the %s", at)
	if missing {
		why = fmt.Errorf("%w, which does not have it", why)
	}
	resp.Diagnostics.Append(diagnostic.Failure{
		What: "The resource is in another bucket", Where: before.String(),
		Why: why,
		Do: "Set the provider's storage to that bucket again: a bucket cannot be renamed. To move the cluster, stop " +
			"its servers, copy all objects to the new bucket, make that bucket the home of the shards with " +
			"nstance-admin cluster restore, and plan again.",
	}.Error())
}

// SecretsStore identifies the store of a cluster's secrets.
type SecretsStore struct{ Provider, Prefix, ProjectID string }

// StoreOf returns the store that settings name.
func StoreOf(settings config.Secrets) SecretsStore {
	if settings.Provider == "" || settings.Provider == config.ObjectStorage {
		return SecretsStore{Provider: config.ObjectStorage} // which has no prefix
	}
	return SecretsStore{settings.Provider, settings.Prefix, settings.ProjectID}
}

// String describes the store for messages.
func (s SecretsStore) String() string {
	text := s.Provider
	if s.ProjectID != "" {
		text += ", project " + s.ProjectID
	}
	if s.Prefix != "" {
		text += ", prefix " + s.Prefix
	}
	return text
}

// CanUse reports whether servers can use the store of secrets that a configuration names: they find the CA's key in it,
// or the cluster has no CA yet. The result is false if the store is not that in the provider's settings, or if it
// cannot be read.
func (c *Connection) CanUse(ctx context.Context, cluster config.Cluster) (ok bool) {
	c.Glance(ctx, func(ctx context.Context) {
		state, err := c.Shard(ctx, cluster.ID, "")
		if err != nil {
			return
		}
		// If the cluster has another bucket, this one does not show whether there is a CA.
		_, err = state.UnverifiedCABundle(ctx)
		ok = cluster.Storage == nil && errors.Is(err, objstore.ErrNotFound)
		if !ok && !c.settings.StoreUnknown && StoreOf(c.settings.Secrets) == StoreOf(cluster.Secrets) {
			ok, err = c.HasSecret(ctx, cluster.ID, secretstore.CAKey)
			ok = ok && err == nil
		}
	})
	return ok
}
