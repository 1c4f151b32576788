package sim

import (
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
)

// These values mirror the connection handling of package peer.
const (
	redialAfter, redialMost = 500 * time.Millisecond, 2 * time.Second
	helloTime               = 5 * time.Second
	keepalive, keptAlive    = 10 * time.Second, 5 * time.Second
	maxIncoming             = 256 // messages queued for a paused process
)

// way is one direction of the network between two servers.
type way struct {
	cut  int // number of faults that cut it at present
	kept time.Duration
	// Packet loss ends at lossyUntil and delays end at slowUntil, both in elapsed time.
	lossyUntil, slowUntil time.Duration
	loss                  float64
	slow                  time.Duration
}

// link is a follower's connection to the process that holds the lock. Each side closes its end separately. A closed end
// drops the messages that arrive later.
type link struct {
	world            *World
	follower, leader *process
	closed           [2]bool // by the follower, by the leader
	sent             [2]uint64
}

const (
	followerSide = iota
	leaderSide
)

func (l *link) end(side int) *process {
	if side == followerSide {
		return l.follower
	}
	return l.leader
}

// way returns the direction of the network from one side of the link to the other.
func (l *link) way(from int) *way { return l.world.way(l.end(from).server, l.end(1-from).server) }

func (w *World) way(from, to *server) *way { return &w.ways[from.index][to.index] }

// carries reports whether messages pass in both directions.
func (l *link) carries() bool {
	return l.way(followerSide).cut+l.way(leaderSide).cut == 0 && !l.follower.paused && !l.leader.paused
}

// connectHolder connects a candidate to the holder of the lock, as lease.Run does.
func (s *server) connectHolder() {
	var peer election.Peer
	if s.elector.Role() == election.Standby {
		if holder, ok := s.elector.Holder(); ok && !holder.Released && holder.Incarnation != s.process.name {
			peer = election.Peer{ID: holder.LeaderID, Incarnation: holder.Incarnation}
		}
	}
	if peer == s.follows {
		return
	}
	s.follows = peer
	s.turn++
	if l := s.link; l != nil {
		s.link = nil
		l.hangUp(followerSide, s.process.net.between(0, 50*time.Millisecond))
	}
	s.dialLater(s.process.net.between(time.Millisecond, 30*time.Millisecond), redialAfter)
}

// dialLater connects to the server that this one follows, after the duration "in". If that fails, it tries again with
// growing pauses, up to redialMost.
func (s *server) dialLater(in, pause time.Duration) {
	if s.follows == (election.Peer{}) {
		return
	}
	w, process, turn := s.world, s.process, s.turn
	w.sched.after(in, func() {
		if process.dead || s.turn != turn || s.link != nil {
			return
		}
		leader := w.processOf(s.follows)
		if s.copied != nil { // the leader refuses it
			leader = nil
		}
		again := reconnect.Backoff(pause, redialMost, 2)
		switch {
		case process.paused:
			s.dialLater(time.Second, pause)
		case leader == nil:
			s.dialLater(pause, again) // the connection is refused immediately
		case w.way(s, leader.server).cut+w.way(leader.server, s).cut > 0 || leader.paused:
			s.dialLater(helloTime+pause, again)
		default:
			s.connect(leader)
		}
	})
}

// processOf returns the living process of a peer, or nil if there is none.
func (w *World) processOf(peer election.Peer) *process {
	for _, s := range w.servers {
		if s.alive() && s.process.name == peer.Incarnation {
			return s.process
		}
	}
	return nil
}

func (s *server) connect(leader *process) {
	l := &link{world: s.world, follower: s.process, leader: leader}
	s.link = l
	to := leader.server
	if at := slices.IndexFunc(to.incoming, func(old *link) bool { return old.follower == s.process }); at >= 0 {
		to.incoming[at].close(leaderSide)
	}
	to.incoming = append(to.incoming, l)
	to.give(election.LinkUp{Peer: s.peer()})
	l.keepAlive()
}

// keepAlive checks a connection again and again. It closes both sides if two checks in a row find that the network is
// cut or a process is paused.
func (l *link) keepAlive() {
	l.world.sched.after(keepalive, func() {
		switch {
		case l.closed[followerSide] && l.closed[leaderSide]:
		case l.carries():
			l.keepAlive()
		default:
			l.world.sched.after(keptAlive, func() {
				if l.carries() {
					l.keepAlive()
					return
				}
				l.close(followerSide)
				l.close(leaderSide)
			})
		}
	})
}

// hangUp closes one side of a connection. The other side notices after the duration `notice`.
func (l *link) hangUp(side int, notice time.Duration) {
	l.close(side)
	l.world.sched.after(notice, func() { l.close(1 - side) })
}

func (l *link) close(side int) {
	if l.closed[side] {
		return
	}
	l.closed[side] = true
	p := l.end(side)
	s := p.server
	if s.process != p || p.dead {
		return
	}
	if side == leaderSide {
		s.incoming = slices.DeleteFunc(s.incoming, func(other *link) bool { return other == l })
		s.give(election.LinkDown{Peer: l.follower.peer()})
		return
	}
	s.world.sched.after(0, func() { // the server may be in the middle of a step
		if s.process == p {
			s.give(election.LeaderLinkDown{Leader: l.leader.peer()})
		}
	})
	if s.link == l {
		s.link = nil
		s.dialLater(redialAfter, redialAfter)
	}
}

// links returns the connections of a server, as follower and as leader.
func (s *server) links() []*link {
	all := slices.Clone(s.incoming)
	if s.link != nil {
		all = append(all, s.link)
	}
	return all
}

func (l *link) side(p *process) int {
	if l.follower == p {
		return followerSide
	}
	return leaderSide
}

// disconnect ends the connections of a process that has ended. The peers notice soon, because the kernel closes the
// connections. If the machine is terminated or the network is cut, the peers notice late.
func (s *server) disconnect(terminated bool) {
	for _, l := range s.links() {
		side := l.side(s.process)
		notice := s.process.net.between(0, 10*time.Millisecond)
		if terminated || l.way(side).cut > 0 {
			notice = s.process.net.between(time.Second, keepalive+keptAlive)
		}
		l.hangUp(side, notice)
	}
	s.link, s.incoming, s.follows = nil, nil, election.Peer{}
	s.turn++
}

func (p *process) peer() election.Peer { return election.Peer{ID: p.server.name, Incarnation: p.name} }

func (s *server) peer() election.Peer { return s.process.peer() }

// linkTo returns the connection for a message. Leaders write to followers on the connections that followers opened;
// followers write to leaders on their own connection.
func (s *server) linkTo(a election.Send) *link {
	switch a.Message.(type) {
	case election.Heartbeat, election.Handover:
		for _, l := range s.incoming {
			if l.follower.name == a.To.Incarnation {
				return l
			}
		}
	default:
		if l := s.link; l != nil && l.leader.name == a.To.Incarnation {
			return l
		}
	}
	return nil
}

// send delivers a message with its faults: it may be lost, delayed or repeated.
func (s *server) send(a election.Send) {
	s.says(a.Message)
	l := s.linkTo(a)
	if l == nil {
		return
	}
	w, side := s.world, l.side(s.process)
	to, net := l.end(1-side), l.way(side)
	l.sent[side]++
	d := dice{mix(w.opts.Seed ^ mix(s.process.hash^mix(to.hash^l.sent[side])))}
	occasion := d.state
	delay := d.between(100*time.Microsecond, 5*time.Millisecond)
	if now := w.sched.elapsed; net.cut > 0 {
		if net.kept <= now {
			return
		}
		delay += net.kept - now // the kernel retransmits until the message gets through
	} else {
		if now < net.lossyUntil && d.chance(net.loss) {
			return
		}
		if now < net.slowUntil {
			delay += d.between(0, net.slow)
		}
	}
	times := 1
	for _, o := range ofMessages {
		if u := d.Float64(); u >= w.rates.of[o.kind] || !w.faults.admit(occasion, o.kind) {
			continue
		}
		w.faults.about("%T from %s to %s", a.Message, s.process.name, to.name)
		switch o.kind {
		case messageLost:
			return
		case messageLate:
			delay += d.between(0, 4*w.promise)
		case messageTwice:
			times = 2
		}
		break
	}
	for range times {
		w.sched.after(delay, func() { l.deliver(1-side, a.Message) })
		delay += d.between(0, 2*w.promise) // the delay of the second delivery
	}
}

// deliver hands a message to the process on one side of a link.
func (l *link) deliver(side int, m election.Message) {
	p := l.end(side)
	if p.dead || l.closed[side] || p.paused && len(p.server.inbox) >= maxIncoming {
		return
	}
	p.server.give(m)
}

// strikePeers causes a fault of the network between servers.
func (w *World) strikePeers(k Kind, s *server, d *dice) {
	others := slices.DeleteFunc(slices.Clone(w.servers), func(o *server) bool { return o == s })
	if d.IntN(2) == 0 {
		others = others[d.IntN(len(others)):][:1]
	}
	until := d.between(100*time.Millisecond, minute)
	outward := d.IntN(2) == 0
	kept := d.IntN(2) == 0
	loss, slow := d.Float64(), d.between(0, 3*w.promise)
	w.faults.about("%s and %d others for %v", s.name, len(others), until)
	for _, o := range others {
		ways := []*way{w.way(s, o), w.way(o, s)}
		switch k {
		case peersCut:
			w.cutWays(ways, until, kept)
		case peersOneWay:
			if outward {
				w.cutWays(ways[:1], until, kept)
			} else {
				w.cutWays(ways[1:], until, kept)
			}
		case peersLossy:
			for _, way := range ways {
				way.loss, way.lossyUntil = loss, w.sched.elapsed+until
			}
		case peersSlow:
			for _, way := range ways {
				way.slow, way.slowUntil = slow, w.sched.elapsed+until
			}
		}
	}
}

func (w *World) cutWays(ways []*way, d time.Duration, kept bool) {
	for _, way := range ways {
		way.cut++
		if kept {
			way.kept = max(way.kept, w.sched.elapsed+d)
		}
	}
	w.sched.after(d, func() {
		for _, way := range ways {
			way.cut = max(0, way.cut-1)
		}
	})
}

// flap repeatedly ends the connections of a server. It stops when the simulated time reaches `until`.
func (w *World) flap(s *server, until time.Duration, d *dice) {
	if w.quiet || w.sched.elapsed >= until {
		return
	}
	w.breakLinks(s, d)
	w.sched.after(d.between(100*time.Millisecond, 12*time.Second), func() { w.flap(s, until, d) })
}

// breakLinks ends the connections of a server. One side may notice late.
func (w *World) breakLinks(s *server, d *dice) {
	for _, l := range s.links() {
		notice := time.Duration(0)
		if d.IntN(2) == 0 {
			notice = d.between(0, 15*time.Second)
		}
		l.hangUp(d.IntN(2), notice)
	}
}
