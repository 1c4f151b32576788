// Package peer manages the connections between the servers of a shard, over which a leader and its heir exchange
// messages (package lease). Each follower opens a gRPC stream with mutual TLS to the leader's election port.
//
// Invariant: the package accepts a message only from a server of the same shard, and only if the message names its
// sender as the source. The package makes no decisions. Messages may be lost, and package lease allows for that.
package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/lead/lease"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

const (
	// maxOutgoing limits the messages that wait for a link. maxIncoming limits the messages that wait for the election.
	maxOutgoing, maxIncoming = 32, 256
	// flushTime is how long queued messages may still be sent after a link is closed.
	flushTime = time.Second
)

// Options configure New. All are required, except for Refused, Joined, Config and Restart.
type Options struct {
	Self  election.Peer
	Shard string
	// Source returns the source of certificates. While the cluster has no CA, it returns nil, and the network opens no
	// link.
	Source func() *transport.Source
	Log    *slog.Logger
	// Sleep waits for d. It returns an error when ctx has ended.
	Sleep func(ctx context.Context, d time.Duration) error
	// Bucket is the bucket that this server uses. Only servers that use the same bucket are linked.
	Bucket objstore.Store
	// Refused is called when a server that uses another bucket was refused.
	Refused func()
	// Joined is called when another server has connected to this one.
	Joined func()
	// Config returns the version of the configuration with which this server runs. A leader learns it when this server
	// connects.
	Config func() string
	// Restart is called when the leader asks this server to restart with a version of the configuration. It returns why
	// this server cannot run with that version, or "".
	Restart func(version string) (refusal string)
}

// Network holds a server's links. It implements [lease.Links].
type Network struct {
	options Options

	mu     sync.Mutex
	links  map[end]*link
	inbox  *inbox
	holder record.Lock
	// turned is closed when the field holder changes.
	turned chan struct{}
	// proven are the followers that have proved to use this server's bucket.
	proven map[election.Peer]bool
	// refusedAt is when a refusal was logged last.
	refusedAt time.Time

	// provedTo is the leader that has accepted this process's proof. Only Run uses it.
	provedTo election.Peer
}

var _ lease.Links = (*Network)(nil)

// New returns a network without links. Server accepts links, and Run opens them.
func New(options Options) *Network {
	return &Network{options: options, links: map[end]*link{}, turned: make(chan struct{}),
		proven: map[election.Peer]bool{}}
}

// end identifies a link. A leader sends over incoming links, and a follower sends over the links that it opened.
type end struct {
	peer     election.Peer
	incoming bool
}

// link is one stream to another process. The goroutine of the link sends queued messages from out. When done is closed,
// it still sends the messages that are already queued.
type link struct {
	end
	out  chan any
	done chan struct{}
	once sync.Once

	// standby describes the other server of an incoming link. Network.mu protects it.
	standby Standby
}

func newLink(peer election.Peer, incoming bool) *link {
	return &link{end: end{peer, incoming}, out: make(chan any, maxOutgoing), done: make(chan struct{})}
}

// send queues a message. It drops the message if the queue is full.
func (l *link) send(message any) {
	select {
	case l.out <- message:
	default:
	}
}

func (l *link) close() { l.once.Do(func() { close(l.done) }) }

// pump sends queued messages until the link is closed. It then sends the messages that are still in the queue.
func (l *link) pump(send func(message any) error) error {
	for {
		select {
		case m := <-l.out:
			if err := send(m); err != nil {
				return err
			}
		case <-l.done:
			if len(l.out) == 0 {
				return nil
			}
		}
	}
}

// Send implements [lease.Links].
func (n *Network) Send(to election.Peer, m election.Message) {
	_, beats := m.(election.Heartbeat)
	_, parts := m.(election.Handover)
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.links[end{to, beats || parts}]; l != nil {
		l.send(m)
	}
}

// Follow implements [lease.Links].
func (n *Network) Follow(holder record.Lock) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.holder = holder
	close(n.turned)
	n.turned = make(chan struct{})
}

// Events implements [lease.Links].
func (n *Network) Events(ctx context.Context) <-chan election.Input {
	n.mu.Lock()
	defer n.mu.Unlock()
	box := &inbox{wake: make(chan struct{}, 1)}
	n.inbox = box
	for end := range n.links {
		if end.incoming {
			box.put(election.LinkUp{Peer: end.peer})
		}
	}
	events := make(chan election.Input)
	go box.deliver(ctx, events)
	return events
}

// Linked reports whether this server is connected to the given leader, which has accepted this server.
func (n *Network) Linked(leader election.Peer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.links[end{peer: leader}] != nil
}

// add registers a link. It replaces an earlier link to the same process.
func (n *Network) add(l *link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if old := n.links[l.end]; old != nil {
		n.removeLink(old)
	}
	n.links[l.end] = l
	if l.incoming && n.inbox != nil {
		n.inbox.put(election.LinkUp{Peer: l.peer})
	}
}

// remove closes a link and unregisters it, unless another link has replaced it.
func (n *Network) remove(l *link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.links[l.end] == l {
		n.removeLink(l)
	}
	l.close()
}

// removeLink unregisters and closes a link. The caller must hold mu.
func (n *Network) removeLink(l *link) {
	delete(n.links, l.end)
	l.close()
	switch {
	case n.inbox == nil:
	case l.incoming:
		n.inbox.put(election.LinkDown{Peer: l.peer})
	default:
		n.inbox.put(election.LeaderLinkDown{Leader: l.peer})
	}
}

// deliver passes a message to the election, or handles a message about a restart. It returns false if the message's
// source is not the other process, or its destination is not this process.
func (n *Network) deliver(l *link, message any) bool {
	switch m := message.(type) {
	case restart:
		return n.receiveRestart(l, m)
	case refusal:
		return n.receiveRefusal(l, m)
	}
	var leader, follower election.Peer
	received, ok := message.(election.Message)
	switch m := received.(type) {
	case election.Heartbeat:
		leader, follower, ok = m.Leader, m.Standby, ok && !l.incoming
	case election.Handover:
		leader, follower, ok = m.Leader, m.Standby, ok && !l.incoming
	case election.Promise:
		leader, follower, ok = m.Leader, m.Standby, ok && l.incoming
	case election.TookOver:
		leader, follower, ok = m.Leader, m.Standby, ok && l.incoming
	}
	from, to := leader, follower
	if l.incoming {
		from, to = follower, leader
	}
	if !ok || from != l.peer || to != n.options.Self {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.inbox != nil && n.links[l.end] == l {
		n.inbox.put(received)
	}
	return true
}

// inbox holds incoming messages and link events that were not taken yet. It discards messages beyond maxIncoming, but
// never link events.
type inbox struct {
	mu    sync.Mutex
	queue []election.Input
	wake  chan struct{}
}

func (b *inbox) put(in election.Input) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, message := in.(election.Message); message && len(b.queue) >= maxIncoming {
		return
	}
	b.queue = append(b.queue, in)
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *inbox) deliver(ctx context.Context, events chan<- election.Input) {
	for {
		b.mu.Lock()
		queue := b.queue
		b.queue = nil
		b.mu.Unlock()
		for _, in := range queue {
			select {
			case events <- in:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-b.wake:
		case <-ctx.Done():
			return
		}
	}
}

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
