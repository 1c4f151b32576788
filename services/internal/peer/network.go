// Package peer owns the connections between the servers of a shard, over which a leader and its heir talk (package
// lease): a gRPC stream from each follower to the leader's election port, with mutual TLS.
//
// Invariant: a message is heard only from a server of the same shard, and only in the name of the process that it is
// from. Nothing here decides anything: messages may be lost, and lease counts on that.
package peer

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/election"
	"github.com/nstance-kit/nstance/services/internal/lease"
	"github.com/nstance-kit/nstance/services/internal/transport"
)

const (
	// maxOutgoing is how many messages may wait for a link, maxIncoming for the election.
	maxOutgoing, maxIncoming = 32, 256
	// flushTime is how long what was handed to a link may still be sent when the link is given up.
	flushTime = time.Second
)

// Options of New. All are required.
type Options struct {
	Self  election.Peer
	Shard string
	// Source of certificates; nil while the cluster has no CA: then nobody is connected to.
	Source func() *transport.Source
	Log    *slog.Logger
	// Sleep waits, or returns an error when ctx has ended.
	Sleep func(ctx context.Context, d time.Duration) error
}

// Network is a server's links. It implements [lease.Links].
type Network struct {
	options Options

	mu     sync.Mutex
	links  map[end]*link
	inbox  *inbox
	holder record.Lock
	// turned is closed when holder changes.
	turned chan struct{}
}

var _ lease.Links = (*Network)(nil)

// New returns a network without links. Server takes them in, Run makes them.
func New(options Options) *Network {
	return &Network{options: options, links: map[end]*link{}, turned: make(chan struct{})}
}

// end names a link: leaders speak to followers over those that came in, followers to leaders over those that they made.
type end struct {
	peer     election.Peer
	incoming bool
}

// link is one stream to another process. Whoever carries it sends what is in out until done is closed, then what is
// left.
type link struct {
	end
	out  chan election.Message
	done chan struct{}
	once sync.Once
}

func newLink(peer election.Peer, incoming bool) *link {
	return &link{end: end{peer, incoming}, out: make(chan election.Message, maxOutgoing), done: make(chan struct{})}
}

func (l *link) close() { l.once.Do(func() { close(l.done) }) }

// pump sends until the link is closed, then what was handed to it before.
func (l *link) pump(send func(frame []byte) error) error {
	one := func(m election.Message) error {
		frame, err := encode(m)
		if err != nil {
			return err
		}
		return send(frame)
	}
	for {
		select {
		case m := <-l.out:
			if err := one(m); err != nil {
				return err
			}
		case <-l.done:
			for {
				select {
				case m := <-l.out:
					if err := one(m); err != nil {
						return err
					}
				default:
					return nil
				}
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
		select {
		case l.out <- m:
		default:
		}
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

// add makes a link known, in place of an earlier one with the same process.
func (n *Network) add(l *link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if old := n.links[l.end]; old != nil {
		n.drop(old)
	}
	n.links[l.end] = l
	if l.incoming && n.inbox != nil {
		n.inbox.put(election.LinkUp{Peer: l.peer})
	}
}

// remove ends a link, unless another has taken its place.
func (n *Network) remove(l *link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.links[l.end] == l {
		n.drop(l)
	}
	l.close()
}

// drop needs mu.
func (n *Network) drop(l *link) {
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

// hear passes a message on, if it is in the name of the process that it came from.
func (n *Network) hear(l *link, message any) bool {
	var leader, follower election.Peer
	said, ok := message.(election.Message)
	switch m := said.(type) {
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
		n.inbox.put(said)
	}
	return true
}

// inbox is what has come in and was not taken yet. Messages beyond maxIncoming are lost; links are never forgotten.
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
