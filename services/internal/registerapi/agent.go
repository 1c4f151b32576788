package registerapi

import (
	"bytes"
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/shardstate"
	"github.com/nstance-kit/nstance/services/internal/transport"
)

// address is the address of a machine according to its agent.
type address struct{ ipv4, ipv6, hostname string }

func parseAddress(req *nstancev1.RegisterAgentRequest) (address, error) {
	at := address{hostname: req.GetHostname()}
	if err := ValidateHostname(at.hostname); err != nil {
		return at, status.Errorf(codes.InvalidArgument, "hostname: %v", err)
	}
	var err error
	if at.ipv4, err = parseIP(req.GetIpv4(), netip.Addr.Is4); err != nil {
		return at, status.Errorf(codes.InvalidArgument, "ipv4: %v", err)
	}
	if at.ipv6, err = parseIP(req.GetIpv6(), netip.Addr.Is6); err != nil {
		return at, status.Errorf(codes.InvalidArgument, "ipv6: %v", err)
	}
	return at, nil
}

// parseIP returns the canonical form of an address of one family. An empty text is valid and returned unchanged.
func parseIP(text string, family func(netip.Addr) bool) (string, error) {
	if text == "" {
		return "", nil
	}
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil || !family(addr) || addr.Is4In6():
		return "", errors.New("is not an address of this family")
	case addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast():
		return "", errors.New("is not the address of one machine")
	}
	return addr.String(), nil
}

// ValidateHostname checks a host name that an agent reports: labels of letters, digits, dashes, and underscores. An
// empty name is valid and means unknown.
func ValidateHostname(name string) error {
	if name == "" {
		return nil
	}
	if len(name) > 253 {
		return errors.New("has more than 253 characters")
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return errors.New("has an empty label, or one of more than 63 characters")
		}
		for i := range len(label) {
			c := label[i]
			if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return errors.New("has a character that is not a letter, digit, dash or underscore")
			}
		}
	}
	return nil
}

// agent registers an instance's agent.
func (c *call) agent(at address) (certificate, error) {
	if c.claims.Shard != c.leader.Shard {
		return certificate{}, status.Errorf(codes.PermissionDenied, "nonce: is for shard %s, this is %s",
			c.claims.Shard, c.leader.Shard)
	}
	id := c.claims.ID
	rec, _, ok := c.leader.State.Record(id)
	if !ok {
		return certificate{}, c.unknown()
	}
	if rec.Tenant != c.claims.Tenant || rec.Group != c.claims.Group {
		return certificate{},
			status.Errorf(codes.PermissionDenied, "nonce: is for group %s/%s, instance %s is of %s/%s",
				c.claims.Tenant, c.claims.Group, id, rec.Tenant, rec.Group)
	}
	if err := c.checkAddress(); err != nil {
		return certificate{}, err
	}
	spent, err := c.check(&rec)
	if err != nil {
		return certificate{}, err
	}
	if spent {
		if cert, ok := c.again(*rec.Certificate); ok {
			return cert, nil
		}
	}
	cert, ref, err := c.issue()
	if err != nil {
		return certificate{}, err
	}
	// The log is written first. A logged certificate that is never used does no harm, but a used certificate must be in
	// the log.
	if err := c.leader.Store.AppendCertLog(c.ctx, record.CertLog{
		Schema: record.CertLogSchema, Cluster: c.leader.Cluster, Shard: c.leader.Shard, Tenant: rec.Tenant,
		Instance: id, Term: c.leader.Term,
		Writer: c.leader.Incarnation, IssuedAt: c.now, Issued: []record.Issued{{Name: record.CertAgent,
			Kind: record.CertAgent, Serial: ref.Serial, NotAfter: ref.NotAfter}},
	}); err != nil {
		return certificate{}, c.failed("certificate log", err)
	}

	// Of two concurrent registrations, one writes first. The change of the other is then checked against the written
	// record.
	var refusal error
	rec, err = c.leader.Records.Update(c.ctx, id, func(r *record.Instance) {
		if spent, refusal = c.check(r); refusal != nil {
			return
		}
		if !spent {
			vm, _ := c.leader.State.VM(id)
			if r.State == record.Reserved {
				r.ProviderID, r.LaunchedAt = vm.ProviderID, vm.LaunchedAt
			}
			r.State, r.RegisteredAt, r.PublicKey, r.NonceID = record.Registered, c.now, c.key, c.claims.JTI
			r.IPv4, r.IPv6, r.Hostname = cmp.Or(at.ipv4, r.IPv4), cmp.Or(at.ipv6, r.IPv6),
				cmp.Or(at.hostname, r.Hostname)
		}
		r.Certificate = &ref
	})
	switch {
	case refusal != nil:
		return certificate{}, refusal
	case err != nil:
		if _, _, ok := c.leader.State.Record(id); !ok {
			return certificate{}, c.unknown()
		}
		return certificate{}, c.failed("instance record", err)
	}
	if !spent {
		c.leader.State.Publish(shardstate.NewEvent(shardstate.EventRegistered, &rec, ""))
	}
	return cert, nil
}

// checkAddress checks that the client calls from an address of the instance's VM, if the provider knows the addresses.
// So a nonce is of no use on another VM. While the VM does not run yet, the provider may still add addresses.
func (c *call) checkAddress() error {
	vm, _ := c.leader.State.VM(c.claims.ID)
	from := transport.PeerAddress(c.ctx)
	if !c.leader.CheckAddress() || len(vm.Addresses) == 0 || slices.Contains(vm.Addresses, from.String()) {
		return nil
	}
	if vm.State != infra.Running {
		return status.Errorf(codes.Unavailable,
			"instance %s: %s is not an address of its VM so far, try again", c.claims.ID, from)
	}
	return status.Errorf(codes.PermissionDenied,
		"instance %s: %s is not an address of its VM; set server.check_registration_address to false if agents reach "+
			"the server through NAT", c.claims.ID, from)
}

// check reports whether the record allows a registration. spent is true if the same key has already consumed the nonce.
func (c *call) check(r *record.Instance) (spent bool, err error) {
	mine := r.NonceID == c.claims.JTI && bytes.Equal(r.PublicKey, c.key)
	switch r.State {
	case record.Registered:
		if !mine {
			return false,
				status.Errorf(codes.PermissionDenied, "nonce: instance %s is registered with another key or nonce",
					r.ID)
		}
		return true, nil
	case record.Reserved, record.Created:
		if c.expired {
			return false, c.errExpired()
		}
		if vm, _ := c.leader.State.VM(r.ID); r.State == record.Reserved && vm.ProviderID == "" {
			return false, status.Errorf(codes.Unavailable, "instance %s: its creation is not recorded yet, try again",
				r.ID)
		}
		return false, nil
	default:
		return false, status.Errorf(codes.PermissionDenied, "instance %s is being deleted", r.ID)
	}
}

// unknown returns the error for an instance that the leader does not know. It reads the bucket before a permanent
// refusal, because the leader may not have settled the records of an earlier term yet.
func (c *call) unknown() error {
	id := c.claims.ID
	if _, dead := c.leader.State.Tombstone(id); dead {
		return status.Errorf(codes.PermissionDenied, "instance %s is deleted", id)
	}
	rec, _, err := c.leader.Store.GetInstance(c.ctx, c.claims.Tenant, id)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		if c.expired {
			return c.errExpired()
		}
		return status.Errorf(codes.NotFound, "there is no instance %s", id)
	case err != nil:
		return c.failed("instance record", err)
	case rec.State == record.Deleted:
		return status.Errorf(codes.PermissionDenied, "instance %s is deleted", id)
	}
	return status.Errorf(codes.Unavailable, "instance %s: left by an earlier leader and not settled yet, try again", id)
}
