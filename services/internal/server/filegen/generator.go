// Package filegen generates, for one instance, the files that its agent receives, including certificates. It also
// generates the arguments and the boot script of the instance's VM.
//
// Invariant: everything except certificates and nonces depends only on the configuration and the instance. A
// certificate is issued only for a public key that the instance's agent submitted, and only under a certificate
// template that the instance's group uses. What an agent says about its machine affects only the content of files,
// never a certificate or the key of an object in the bucket.
package filegen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/contract/render"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// maxCompiled is the maximum number of compiled configurations in memory. A shard never needs so many at the same time.
const maxCompiled = 512

// Shard is the part of the configuration that files and VMs of all groups share.
type Shard struct {
	Cluster  render.Cluster
	Server   render.Server
	Provider render.Provider
	// Image holds the resolved ID of each image of the configuration, by name.
	Image        map[string]string
	Certificates map[string]config.Certificate
	// NonceTTL is the time within which an instance must register.
	NonceTTL time.Duration
}

// Options configure a [Generator]. All fields except CacheTTL are required.
type Options struct {
	// Each of the WorkloadCAs signs certificates from its own start time on. CA is the cluster's CA. It signs
	// certificates before the first of these start times.
	CA          authority.CA
	WorkloadCAs authority.WorkloadCAs
	NonceKey    authority.NonceKey
	// Secrets supplies the content of secret files. The generator remembers it for CacheTTL, so Secrets needs no cache.
	Secrets secretstore.Store
	// ReadFile reads an object of the bucket whose key begins with "files/". The name is the rest of the key.
	ReadFile func(ctx context.Context, name string) ([]byte, error)
	CacheTTL time.Duration // cluster.secrets.cache_ttl; 0: no caching
	Rand     io.Reader     // crypto/rand.Reader except in tests; must be safe for concurrent use
	Now      func() time.Time
}

// Generator generates files and machines. It is safe for concurrent use.
type Generator struct {
	options Options
	shard   atomic.Pointer[Shard]
	fetched memory

	mu       sync.Mutex
	files    map[string]*fileSet         // by runtime hash
	machines map[string]*machine         // by infra hash
	scripts  map[string]*render.Userdata // boot scripts of the bucket, by text
}

// New returns a Generator. Its methods fail until [Generator.Configure] is called.
func New(options Options) *Generator {
	return &Generator{options: options, fetched: memory{ttl: options.CacheTTL, now: options.Now,
		entries: map[string]*entry{}},
		files: map[string]*fileSet{}, machines: map[string]*machine{}, scripts: map[string]*render.Userdata{}}
}

// Configure activates a shard's configuration, or newly resolved images. The caller must not change the argument
// afterwards.
func (g *Generator) Configure(shard Shard) { g.shard.Store(&shard) }

// Images returns the ID of each image of the shard, by name. The caller must not change the result.
func (g *Generator) Images() map[string]string {
	if shard := g.shard.Load(); shard != nil {
		return shard.Image
	}
	return nil
}

// imagesOf returns the images that a group uses: its own, if it has returned to its good configuration, otherwise those
// of the shard.
func imagesOf(shard *Shard, group *config.Group) map[string]string {
	if group.Images != nil {
		return group.Images
	}
	return shard.Image
}

// Warm compiles the templates of groups and reads their boot scripts in the bucket. It skips scripts that were read
// within the last hour. After Warm has returned, a create in these groups does not have to wait for the compilation or
// for the scripts.
func (g *Generator) Warm(ctx context.Context, groups map[config.GroupKey]config.Group) error {
	return g.warm(ctx, groups, age{stale: true})
}

// Reload is like Warm, but reads the boot scripts even if they were read within the last hour. It reads each script in
// the bucket once.
func (g *Generator) Reload(ctx context.Context, groups map[config.GroupKey]config.Group) error {
	return g.warm(ctx, groups, age{stale: true, after: g.options.Now()})
}

func (g *Generator) warm(ctx context.Context, groups map[config.GroupKey]config.Group, allowed age) error {
	shard := g.shard.Load()
	if shard == nil {
		return errUnconfigured
	}
	var errs []error
	for key, group := range groups {
		if group.Deleted {
			continue
		}
		_, err := g.fileSet(shard, &group)
		errs = append(errs, err)
		m, err := g.machine(&group)
		if err == nil && m.source != nil {
			// Render the key of the script's object in the bucket. Use only the values that all instances of the group
			// share. If the key depends on an instance's ID, the script is read only when that instance is created.
			_, err = g.script(ctx, m, data(shard, &group, &record.Instance{Tenant: key.Tenant, Group: key.Group},
				Address{}), allowed)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("group %s: %w", key, err))
		}
	}
	return errors.Join(errs...)
}

var errUnconfigured = errors.New("no configuration is in force yet")

// Address is an address of an instance that the provider reported or the server chose. It never comes from the
// instance's agent.
type Address struct{ IPv4, IPv6, Hostname string }

// data returns the values that templates can refer to.
func data(shard *Shard, group *config.Group, rec *record.Instance, at Address) render.Data {
	vars := group.Vars
	if len(rec.Vars) > 0 {
		vars = maps.Clone(vars)
		if vars == nil {
			vars = map[string]string{}
		}
		maps.Copy(vars, rec.Vars)
	}
	return render.Data{
		Instance: render.Instance{
			ID: rec.ID.String(), Kind: group.Kind, Arch: group.Arch, Type: rec.InstanceType,
			Group: group.GroupKey.Group, Tenant: group.Tenant,
			Hostname: at.Hostname, FQDN: at.Hostname, IP4: at.IPv4, IP6: at.IPv6,
		},
		Cluster: shard.Cluster, Server: shard.Server, Provider: shard.Provider, Vars: vars,
		Image: imagesOf(shard, group),
	}
}

// remembered returns the value for a key in a map. If the map has no value, remembered makes one and stores it.
func remembered[V any](mu *sync.Mutex, in map[string]V, key string, make func() (V, error)) (V, error) {
	mu.Lock()
	have, ok := in[key]
	mu.Unlock()
	if ok && key != "" {
		return have, nil
	}
	made, err := make()
	if err != nil {
		return made, err
	}
	mu.Lock()
	defer mu.Unlock()
	if len(in) >= maxCompiled {
		clear(in)
	}
	in[key] = made
	return made, nil
}

// object reads an object of the bucket. The parameter key is the result of a rendered template.
func (g *Generator) object(ctx context.Context, key string, allowed age) ([]byte, error) {
	if err := config.ValidateStorageSource(key); err != nil {
		return nil, err
	}
	name := strings.TrimPrefix(key, keys.FilePrefix())
	return g.fetched.get(ctx, "file "+name, allowed, func(ctx context.Context) ([]byte, error) {
		return g.options.ReadFile(ctx, name)
	})
}

// Secret returns a secret of the user. It may be as old as CacheTTL.
func (g *Generator) Secret(ctx context.Context, name string) ([]byte, error) {
	if err := config.ValidateSecretSource(name); err != nil {
		return nil, err
	}
	return g.fetched.get(ctx, "secret "+name, age{}, func(ctx context.Context) ([]byte, error) {
		secret, err := g.options.Secrets.Get(ctx, name)
		if err != nil {
			return nil, err
		}
		return secret.Value.Reveal(), nil
	})
}
