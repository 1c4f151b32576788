package peer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// A standby proves to the leader that both use the same bucket. It writes its incarnation, which is random, into the
// bucket before it connects, and the leader reads it in its own bucket. A copy of the leader's bucket does not suffice,
// even one that always follows the original: what the standby writes to the copy does not appear in the original.

// errOtherBucket means that a follower has not proved that it uses this server's bucket.
var errOtherBucket = errors.New("the server's bucket is not the leader's bucket, or its version is too old to prove " +
	"that")

// prove writes this process's proof, unless the leader has accepted a proof of this process before.
func (n *Network) prove(ctx context.Context, leader election.Peer) error {
	if n.provedTo == leader {
		return nil
	}
	key := keys.Probe(n.options.Shard, n.options.Self.Incarnation)
	if _, err := n.options.Bucket.Put(ctx, key, []byte(n.options.Self.Incarnation), objstore.Always()); err != nil {
		return fmt.Errorf("write the proof that this server uses the leader's bucket: %w", err)
	}
	return nil
}

// deleteProof deletes this process's proof.
func (n *Network) deleteProof(ctx context.Context) {
	key := keys.Probe(n.options.Shard, n.options.Self.Incarnation)
	if err := n.options.Bucket.Delete(ctx, key); err != nil && ctx.Err() == nil {
		n.options.Log.Warn("the proof for the leader stays in the bucket", "key", key, "error", err)
	}
}

// checkProof returns a gRPC error unless the follower uses the same bucket as this server. A follower proves that only
// once for each pair of processes, because a process does not change its bucket.
func (n *Network) checkProof(ctx context.Context, from election.Peer) error {
	n.mu.Lock()
	known := n.proven[from]
	n.mu.Unlock()
	if known {
		return nil
	}
	key := keys.Probe(n.options.Shard, from.Incarnation)
	if _, err := keys.Parse(key); err != nil {
		n.refuse(from)
		return status.Error(codes.FailedPrecondition, errOtherBucket.Error())
	}
	object, err := n.options.Bucket.Get(ctx, key)
	switch {
	case errors.Is(err, objstore.ErrNotFound) || err == nil && string(object.Body) != from.Incarnation:
		n.refuse(from)
		return status.Error(codes.FailedPrecondition, errOtherBucket.Error())
	case err != nil:
		return status.Errorf(codes.Unavailable, "read the proof of %s: %v", from.ID, err)
	}
	n.mu.Lock()
	n.proven[from] = true
	n.mu.Unlock()
	return nil
}

// refuse reports a follower that uses another bucket.
func (n *Network) refuse(from election.Peer) {
	if n.options.Refused != nil {
		n.options.Refused()
	}
	n.mu.Lock()
	due := time.Since(n.refusedAt) >= warnEvery
	if due {
		n.refusedAt = time.Now()
	}
	n.mu.Unlock()
	if due {
		n.options.Log.Error("standby refused", "standby", from.ID, "error", errOtherBucket)
	}
}
