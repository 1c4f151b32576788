// Package servers owns the provider's connection to the servers of shards, as an operator: which address, which
// identity, and who leads.
//
// Invariant: nothing is read or dialled until a resource needs it, so that a plan needs no server; and nothing is said
// to, or believed from, a peer that is not a server of our cluster and of the shard that was meant.
package servers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/api/notleader"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/bucket"
)

// callTimeout is how long one call may take, finding the leader included.
const callTimeout = 30 * time.Second

var (
	// ErrUnknown means that the provider's settings are not known yet.
	ErrUnknown = errors.New("the provider's operator settings depend on something that is not applied yet")
	// ErrNoIdentity means that the settings name no identity.
	ErrNoIdentity = errors.New("the provider has no operator identity")
	// ErrIdentity means that there is something wrong with the identity.
	ErrIdentity = errors.New("the operator identity cannot be used")
	// ErrNoAddress means that neither the settings nor the bucket have an address of the shard's leader.
	ErrNoAddress = errors.New("there is no address of the shard's leader")
	// ErrUnreachable means that no server answered as the leader.
	ErrUnreachable = errors.New("no leader answers")
)

// Settings are the provider's.
type Settings struct {
	// Addresses are host:port pairs by shard, tried in turn. Of other shards, the lock in the bucket names the
	// leader's.
	Addresses map[string][]string
	// IdentityDir has ca.crt, identity.crt and identity.key, or else the three texts are set.
	IdentityDir                 string
	CA, Certificate, PrivateKey string
	// Unknown means that any of it is.
	Unknown bool
}

// Connection is shared by all resources of one provider configuration. It may be used concurrently.
type Connection struct {
	settings Settings
	bucket   *bucket.Connection
}

// New returns a connection. It does nothing yet.
func New(settings Settings, b *bucket.Connection) *Connection { return &Connection{settings, b} }

// Of returns the connection among what the provider hands to its resources; nil while Terraform only validates.
func Of(data any) *Connection {
	c, _ := data.(*Connection)
	return c
}

// Bucket is the connection to the bucket.
func (c *Connection) Bucket() *bucket.Connection { return c.bucket }

// Known reports whether the settings are known, and hence servers can be asked. That of a shard without an address
// includes the bucket's.
func (c *Connection) Known(shard string) bool {
	return c != nil && !c.settings.Unknown && (len(c.settings.Addresses[shard]) > 0 || c.bucket.Known())
}

// Identity reads who calls are made as.
func (c *Connection) Identity() (Identity, error) {
	if c == nil || c.settings.Unknown {
		return Identity{}, ErrUnknown
	}
	return loadIdentity(c.settings)
}

// Client is the operator API of one shard.
type Client = nstancev1.OperatorServiceClient

// Call runs do against the leader of a shard: a server that is not the leader names it, and is followed once. do may
// run several times. Errors of the API are those of gRPC; see also this package's.
func (c *Connection) Call(ctx context.Context, shard string, do func(ctx context.Context, client Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	identity, err := c.Identity()
	if err != nil {
		return err
	}
	queue, err := c.addresses(ctx, shard, identity.Who.Cluster)
	if err != nil {
		return err
	}
	var failures []error
	for followed := false; len(queue) > 0; {
		addr := queue[0]
		queue = queue[1:]
		err := try(ctx, identity, shard, addr, do)
		if status.Code(err) != codes.Unavailable && !errors.Is(err, ErrUnreachable) {
			return err
		}
		failures = append(failures, fmt.Errorf("%s: %w", addr, err))
		if leader := notleader.FromError(err).GetOperatorAddr(); leader != "" && leader != addr && !followed {
			followed = true
			queue = append([]string{leader}, slices.DeleteFunc(queue, func(a string) bool { return a == leader })...)
		}
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, errors.Join(failures...))
}

func (c *Connection) addresses(ctx context.Context, shard, cluster string) ([]string, error) {
	if addrs := c.settings.Addresses[shard]; len(addrs) > 0 {
		return slices.Clone(addrs), nil
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

func try(ctx context.Context, identity Identity, shard, addr string, do func(context.Context, Client) error) error {
	transport := &transport{shard: shard, identity: identity}
	// "passthrough": the address is dialled as it is, and its host is the name that the certificate must have.
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(transport),
		grpc.WithDisableServiceConfig())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer func() { _ = conn.Close() }() // it was used, and is not used again
	err = do(ctx, nstancev1.NewOperatorServiceClient(conn))
	if cause := transport.failure(); cause != nil && status.Code(err) == codes.Unavailable {
		return fmt.Errorf("%w: %w", ErrUnreachable, cause)
	}
	return err
}

// Advice says what to do about an error of a call.
func Advice(err error) string {
	var peer *PeerError
	switch {
	case errors.Is(err, ErrUnknown):
		return "Apply what the provider's operator block depends on first, such as with -target, or let this depend " +
			"on it with depends_on."
	case errors.Is(err, ErrNoIdentity):
		return "Set operator in the provider's configuration: identity_dir, as nstance-admin cluster " +
			"register-operator --output-dir writes it, or ca_certificate_pem, " +
			"certificate_pem and private_key_pem, such as those of the ephemeral resource nstance_operator_identity."
	case errors.Is(err, ErrIdentity):
		return "Correct the identity in the provider's operator block: nstance-admin cluster register-operator, or " +
			"the ephemeral resource nstance_operator_identity, makes a new one."
	case errors.Is(err, ErrNoAddress):
		return "Set operator.servers in the provider's configuration, such as { us-west-2a = \"10.0.0.100:8993\" }, " +
			"or the storage, in which the leader's lock names its address."
	case errors.As(err, &peer):
		return "Correct operator.servers in the provider's configuration: each shard needs its own address."
	case errors.Is(err, ErrUnreachable):
		return "Check that a server of the shard runs and leads, that the address in operator.servers is its " +
			"operator port (8993 unless configured otherwise), and that it can be reached from here."
	}
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated:
		return "Check the tenant of the identity in the provider's operator block, and that the operator was not " +
			"removed: nstance-admin cluster register-operator makes a new one."
	case codes.InvalidArgument, codes.FailedPrecondition:
		return "Correct what is named above."
	case codes.Unimplemented:
		return "The server is older than this provider: update it."
	}
	return "Check that the shard's leader is well, and run this again."
}
