// Package servers connects the provider, as an operator, to the servers of shards. It loads the operator's identity,
// and finds the address of a shard's leader.
//
// Invariants:
//   - The package reads and dials nothing until a resource needs it, so a plan needs no server.
//   - The package exchanges data only with servers of its own cluster and of the requested shard.
package servers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/api/tunnel"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
)

// callTimeout bounds one call, including the search for the leader. tunnelTimeout is the same through a tunnel.
const (
	callTimeout   = 30 * time.Second
	tunnelTimeout = time.Minute
)

var (
	// ErrUnknown means that the provider's settings are not known yet.
	ErrUnknown = errors.New("the provider's operator settings depend on resources that are not applied yet")
	// ErrNoIdentity means that the settings contain no identity.
	ErrNoIdentity = errors.New("the provider has no operator identity")
	// ErrIdentity means that the identity cannot be read or is not valid.
	ErrIdentity = errors.New("the operator identity cannot be used")
	// ErrNoAddress means that neither the settings nor the bucket have an address of the shard's leader.
	ErrNoAddress = errors.New("there is no address of the shard's leader")
	// ErrUnreachable means that no server answered as the leader.
	ErrUnreachable = errors.New("no leader answers")
)

// Settings holds the operator settings of the provider.
type Settings struct {
	// Addresses lists host:port pairs by shard. They are tried in order. For shards that are not listed, the package
	// uses the leader's address from the election lock in the bucket.
	Addresses map[string][]string
	// Via holds the way to the servers of a shard, if this machine cannot reach them directly.
	Via map[string]tunnel.Way
	// IdentityDir is a directory with ca.crt, identity.crt and identity.key. If it is "", the three PEM texts below are
	// used.
	IdentityDir                 string
	CA, Certificate, PrivateKey string
	// Unknown means that a setting is not known yet.
	Unknown bool
}

// Connection gives all resources of one provider configuration access to servers. It is safe for concurrent use.
type Connection struct {
	settings Settings
	bucket   *bucket.Connection
}

// New returns a connection. It performs no I/O.
func New(settings Settings, b *bucket.Connection) *Connection { return &Connection{settings, b} }

// Of returns the connection from the data that Terraform gives to a resource. It returns nil while Terraform only
// validates.
func Of(data any) *Connection {
	c, _ := data.(*Connection)
	return c
}

// Bucket returns the connection to the bucket.
func (c *Connection) Bucket() *bucket.Connection { return c.bucket }

// Addresses returns the addresses in the settings, as host:port,… by shard. ok is false if they are not known yet.
func (c *Connection) Addresses() (addresses map[string]string, ok bool) {
	if c == nil || c.settings.Unknown {
		return nil, false
	}
	addresses = map[string]string{}
	for shard, addrs := range c.settings.Addresses {
		addresses[shard] = strings.Join(addrs, ",")
	}
	return addresses, true
}

// Known reports whether all settings that a call to the shard needs are known. If the shard's address is not set, these
// include the settings of the bucket.
func (c *Connection) Known(shard string) bool {
	return c != nil && !c.settings.Unknown && (len(c.settings.Addresses[shard]) > 0 || c.bucket.Known())
}

// Identity loads the identity that calls use. It returns [ErrUnknown] if the settings are not known.
func (c *Connection) Identity() (operatorclient.Identity, error) {
	if c == nil || c.settings.Unknown {
		return operatorclient.Identity{}, ErrUnknown
	}
	return loadIdentity(c.settings)
}

// loadIdentity reads and checks an identity. Its errors never contain the key.
func loadIdentity(s Settings) (identity operatorclient.Identity, err error) {
	switch {
	case s.IdentityDir != "":
		identity, err = operatorclient.LoadIdentity(s.IdentityDir)
	case len(s.CA)+len(s.Certificate)+len(s.PrivateKey) == 0:
		return identity, ErrNoIdentity
	default:
		identity, err = operatorclient.ParseIdentity([]byte(s.CA), []byte(s.Certificate), []byte(s.PrivateKey))
	}
	if err == nil {
		_, err = identity.Config("", time.Now)
	}
	if err != nil {
		return identity, fmt.Errorf("%w: %w", ErrIdentity, err)
	}
	return identity, nil
}

// Client is the operator API of one shard.
type Client = nstancev1.OperatorServiceClient

// Call calls `do` with a client of the shard's leader, as [operatorclient.Client.Call] does. It returns the gRPC errors
// of the API and the errors of this package. It takes at most 30 s, through a tunnel a minute.
func (c *Connection) Call(ctx context.Context, shard string, do func(ctx context.Context, client Client) error) error {
	limit, via := callTimeout, c.way(shard)
	if !via.IsZero() {
		limit = tunnelTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	identity, err := c.Identity()
	if err != nil {
		return err
	}
	addrs, err := c.addresses(ctx, shard, identity.Who.Cluster)
	if err != nil {
		return err
	}
	client := operatorclient.New(operatorclient.Options{Addresses: addrs, Via: via, Proxy: true,
		TLS: func() (*tls.Config, error) {
			return identity.Config(shard, time.Now)
		}})
	defer client.Close()
	err = client.Call(ctx, func(ctx context.Context, to *grpc.ClientConn) error {
		return do(ctx, nstancev1.NewOperatorServiceClient(to))
	})
	var failed *operatorclient.Error
	switch {
	case status.Code(err) == codes.Unavailable:
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	case errors.As(err, &failed):
		return failed.Err
	}
	return err
}

// way returns the way to the servers of a shard.
func (c *Connection) way(shard string) tunnel.Way {
	if c == nil {
		return tunnel.Way{}
	}
	return c.settings.Via[shard]
}

func (c *Connection) addresses(ctx context.Context, shard, cluster string) ([]string, error) {
	if addrs := c.settings.Addresses[shard]; len(addrs) > 0 {
		return addrs, nil
	}
	if err := c.bucket.CheckHome(ctx, shard); err != nil {
		return nil, fmt.Errorf("%w %s: its lock names a leader in another bucket: %w", ErrNoAddress, shard, err)
	}
	state, err := c.bucket.Shard(ctx, cluster, shard)
	if err != nil {
		return nil, fmt.Errorf("%w %s: the operator block has none, and its lock cannot be read: %w", ErrNoAddress,
			shard, err)
	}
	lock, _, err := state.ReadLock(ctx, shard)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w %s: the operator block has none, and its lock cannot be read: %w", ErrNoAddress,
			shard, err)
	case lock.Addresses.Operator == "":
		return nil, fmt.Errorf("%w %s: its lock, of %s, names none", ErrNoAddress, shard, lock.LeaderID)
	}
	return []string{lock.Addresses.Operator}, nil
}

// Advice returns what a user can do about an error of [Connection.Call].
func Advice(err error) string {
	var peer *operatorclient.PeerError
	var copied *clusterstate.NotHomeError
	var failed *tunnel.Error
	switch {
	case errors.As(err, &failed):
		return "Check operator.via in the provider's configuration; " + failed.Advice
	case errors.Is(err, ErrUnknown):
		return "First apply the resources that the provider's operator block depends on, for example with -target, " +
			"or name them in depends_on."
	case errors.Is(err, ErrNoIdentity):
		return "Set operator in the provider's configuration: identity_dir, as nstance-admin cluster " +
			"register-operator --output-dir writes it, or ca_certificate_pem, " +
			"certificate_pem and private_key_pem, such as those of the ephemeral resource nstance_operator_identity."
	case errors.Is(err, ErrIdentity):
		return "Correct the identity in the provider's operator block: nstance-admin cluster register-operator, or " +
			"the ephemeral resource nstance_operator_identity, makes a new one."
	case errors.As(err, &copied):
		return "Set the provider's storage to the home of the shard, or make this bucket its home: nstance-admin " +
			"cluster restore."
	case errors.Is(err, ErrNoAddress):
		return "Set operator.servers in the provider's configuration, such as { us-west-2a = \"10.0.0.100:8993\" }, " +
			"or the storage, in which the leader's lock names its address."
	case errors.As(err, &peer):
		return "Correct operator.servers, or operator.via, in the provider's configuration: each shard needs its own " +
			"address, and its own way there."
	case errors.Is(err, ErrUnreachable):
		return "Check that a server of the shard runs and leads, that the address in operator.servers is its " +
			"operator port (8993 unless configured otherwise), and that it can be reached from here."
	}
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated:
		return "Check the tenant of the identity in the provider's operator block, what the shard's configuration " +
			"permits operators (templates.*.tenants and templates.*.dynamic), and that the operator was not removed: " +
			"nstance-admin cluster register-operator makes a new one."
	case codes.ResourceExhausted:
		return "Raise the tenant's quotas in the shard's configuration (tenants.*), or reduce its groups."
	case codes.InvalidArgument, codes.FailedPrecondition:
		return "Correct the argument that the error names."
	case codes.Unimplemented:
		return "The server is older than this provider: update it."
	}
	return "Check the log of the shard's leader, and run this again."
}
