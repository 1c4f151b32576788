package registerapi

import (
	"bytes"
	"cmp"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/serve/vmaddress"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// agent registers an instance's agent. proof shows on which VM the agent runs. instance is the ID that the agent says
// it has.
func (c *call) agent(proof []byte, instance string) (certificate, error) {
	if c.claims.Shard != c.leader.Shard {
		return certificate{}, status.Errorf(codes.PermissionDenied, "nonce: is for shard %s, this is %s",
			c.claims.Shard, c.leader.Shard)
	}
	if err := c.member(instance); err != nil {
		return certificate{}, err
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
	if err := c.checkProof(proof, &rec); err != nil {
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
	} else if err := c.takeKey(&rec); err != nil {
		return certificate{}, err
	}
	cert, ref, err := c.issue()
	if err != nil {
		return certificate{}, err
	}
	// The certificate log is written before the record. A logged certificate that is never used does no harm, but a
	// used certificate must be in the log.
	if err := c.leader.Store.AppendCertLog(c.ctx, record.CertLog{
		Schema: record.CertLogSchema, Cluster: c.leader.Cluster, Shard: c.leader.Shard, Tenant: rec.Tenant,
		Instance: id, Term: c.leader.Term,
		Writer: c.leader.Incarnation, IssuedAt: c.now, Issued: []record.Issued{{Name: record.CertAgent,
			Kind: record.CertAgent, Serial: ref.Serial, NotAfter: ref.NotAfter}},
	}); err != nil {
		return certificate{}, c.failed("certificate log", err)
	}

	// Update calls this function again if another registration changes the record first. The function then gets the
	// changed record.
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
			fixAddresses(r, &vm)
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
		event := shardstate.NewEvent(shardstate.EventRegistered, &rec, "from "+transport.PeerAddress(c.ctx).String())
		event.Took = c.Now().Sub(c.now)
		c.leader.State.Publish(event)
	}
	return cert, nil
}

// member makes the nonce of a batch one of the instance that the agent says it is. All VMs of the batch have this
// nonce, so the agent's proof must show that it runs on the VM of that instance.
func (c *call) member(instance string) error {
	if c.claims.Batch.IsZero() {
		return nil
	}
	if !c.attested() {
		return c.errUnattested()
	}
	id, err := ident.ParseID(instance)
	if err != nil || !c.claims.Batch.Has(id) {
		return status.Errorf(codes.PermissionDenied, "instance_id: %.100q is no instance of batch %s", instance,
			c.claims.Batch)
	}
	c.claims.ID = id
	return nil
}

// attested reports whether the configuration requires proofs.
func (c *call) attested() bool {
	return c.leader.Attest != nil && c.leader.Attested != nil && c.leader.Attested()
}

func (c *call) errUnattested() error {
	return status.Errorf(codes.PermissionDenied,
		"nonce: is for batch %s, and only server.attestation can tell its VMs apart", c.claims.Batch)
}

// takeKey makes the key in the request the key of the instance, for ever. The agents of two VMs have the same key if an
// image or a disk was copied from a VM. The refused agent makes another key. Its nonce is not consumed.
func (c *call) takeKey(rec *record.Instance) error {
	var taken *clusterstate.KeyTakenError
	switch err := c.leader.Store.TakeKey(c.ctx, c.key, rec.Tenant, rec.ID); {
	case err == nil:
		return nil
	case errors.As(err, &taken):
		return status.Errorf(codes.AlreadyExists, "public_key: %v", taken)
	default:
		return c.failed("record of the public key", err)
	}
}

// fixAddresses fills in the record's missing addresses and host name from the provider's description of the VM. Later
// registrations do not change these fields.
func fixAddresses(r *record.Instance, vm *infra.VM) {
	if ipv4, err := ident.ParseIPv4(vm.IPv4); err == nil {
		r.IPv4 = cmp.Or(r.IPv4, ipv4)
	}
	if ipv6, err := ident.ParseIPv6(vm.IPv6); err == nil {
		r.IPv6 = cmp.Or(r.IPv6, ipv6)
	}
	r.Hostname = cmp.Or(r.Hostname, vm.Hostname, r.ID.String())
}

// checkAddress checks that the client calls from an address of the instance's VM.
func (c *call) checkAddress() error {
	err := c.leader.Addresses.Check(c.ctx, c.claims.ID, transport.PeerAddress(c.ctx))
	if errors.Is(err, vmaddress.ErrNoAnswer) {
		return c.failed("the addresses of the VM", err)
	}
	return err
}

// checkProof checks the agent's proof of the VM on which it runs, if the configuration requires one. A stolen nonce is
// then of no use on another VM, even if both VMs call from the same address.
func (c *call) checkProof(proof []byte, rec *record.Instance) error {
	if c.leader.Attest == nil {
		return nil
	}
	vm, _ := c.leader.State.VM(rec.ID)
	switch err := c.leader.Attest(c.ctx, proof, vm); {
	case err == nil && !c.claims.Batch.IsZero() && !c.attested():
		return c.errUnattested() // the configuration has changed, so the proof may not have been checked
	case err == nil:
		return nil
	case len(proof) == 0:
		// The agent could not get a proof. Its cloud may give it one in a moment.
		c.unproven = true
		return status.Errorf(codes.Unavailable, "instance %s: %v, try again", rec.ID, err)
	case infra.ClassOf(err) == infra.Denied:
		return status.Errorf(codes.PermissionDenied, "instance %s: %v", rec.ID, err)
	default:
		return status.Errorf(codes.Unavailable, "instance %s: %v, try again", rec.ID, err)
	}
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
		return true, c.checkConsumed(r.Certificate.NotAfter)
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

// unknown returns the error for an instance that the leader does not know. An earlier leader may have left the
// instance's record, and this leader may not have examined it yet. So unknown reads the bucket before it refuses the
// client.
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
