package transport

import (
	"container/list"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

const (
	// doubt is for how long a handshake in vain makes its source doubtful.
	doubt = 10 * time.Second
	// All doubtful sources together may have allowance handshakes in vain at once, and one more each forgetting: forty
	// a second are 4 % of a core.
	allowance  = 16
	forgetting = 25 * time.Millisecond
)

// desk is where handshakes take processor time: whoever has not said its first message takes none, and is not here. So
// few work there at once that others, who are known already, find a processor free. Sources that have had a handshake
// in vain lately work there after all others, and what all of them together have in vain is bounded, however many they
// are; they alternate. A handshake that succeeds costs its source nothing. It is safe for concurrent use.
type desk struct {
	mu       sync.Mutex
	free     int
	again    *list.List // of *asking: who was here already, and waited for its client
	honest   *list.List // of *line in which somebody waits
	doubtful *list.List // likewise
	lines    map[netip.Addr]*line
	spent    int // handshakes of doubtful sources, and in vain ones of others, not forgotten yet: at most allowance
	timing   bool
}

// line is what is known of a source.
type line struct {
	from    netip.Addr
	waiting *list.List // of *asking
	until   time.Time  // when it is honest again; zero: it is
	place   *list.Element
	among   *list.List // where place is: nil, desk.honest or desk.doubtful
}

type asking struct {
	turn chan struct{} // closed when it is its turn
	paid bool          // of the allowance
}

func newDesk(size int) *desk {
	return &desk{free: size, again: list.New(), honest: list.New(), doubtful: list.New(), lines: map[netip.Addr]*line{}}
}

// take waits for a place, which is given back with give. How the handshake ended is told to judge, with paid.
func (d *desk) take(from netip.Addr, patience time.Duration) (paid, ok bool) {
	a := &asking{turn: make(chan struct{})}
	d.mu.Lock()
	l := d.line(from)
	place := l.waiting.PushBack(a)
	d.put(l)
	d.serve()
	d.mu.Unlock()
	ok = d.await(a, patience, func() {
		l.waiting.Remove(place)
		d.put(l)
	})
	return a.paid, ok
}

// takeAgain waits for a place in the same handshake.
func (d *desk) takeAgain(patience time.Duration) (ok bool) {
	a := &asking{turn: make(chan struct{})}
	d.mu.Lock()
	place := d.again.PushBack(a)
	d.serve()
	d.mu.Unlock()
	return d.await(a, patience, func() { d.again.Remove(place) })
}

// await calls leave, with mu, if the patience ends.
func (d *desk) await(a *asking, patience time.Duration, leave func()) bool {
	select {
	case <-a.turn:
		return true
	default:
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-a.turn:
		return true
	case <-timer.C:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-a.turn: // in the last moment
		return true
	default:
		leave()
		return false
	}
}

// give gives a place back.
func (d *desk) give() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free++
	d.serve()
}

// judge says of a handshake of a source whether it was in vain. It may have failed before it took a place.
func (d *desk) judge(from netip.Addr, paid, vain bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case vain:
		l := d.line(from)
		if l.until.IsZero() {
			time.AfterFunc(doubt, func() { d.trust(l) })
		}
		l.until = time.Now().Add(doubt)
		d.put(l)
		if !paid {
			d.spend()
		}
	case paid:
		d.spent = max(d.spent-1, 0)
	}
	d.serve()
}

// trust ends the doubt, if there was nothing new.
func (d *desk) trust(l *line) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if left := time.Until(l.until); left > 0 {
		time.AfterFunc(left, func() { d.trust(l) })
		return
	}
	l.until = time.Time{}
	d.put(l)
	d.serve()
}

// spend needs mu. What is more than the allowance is not remembered.
func (d *desk) spend() {
	d.spent = min(d.spent+1, allowance)
	if !d.timing {
		d.timing = true
		time.AfterFunc(forgetting, d.forget)
	}
}

func (d *desk) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spent = max(d.spent-1, 0)
	if d.timing = d.spent > 0; d.timing {
		time.AfterFunc(forgetting, d.forget)
	}
	d.serve()
}

// line needs mu.
func (d *desk) line(from netip.Addr) *line {
	l := d.lines[from]
	if l == nil {
		l = &line{from: from, waiting: list.New()}
		d.lines[from] = l
	}
	return l
}

// put puts a line where it belongs. It needs mu.
func (d *desk) put(l *line) {
	var among *list.List
	switch {
	case l.waiting.Len() > 0 && l.until.IsZero():
		among = d.honest
	case l.waiting.Len() > 0:
		among = d.doubtful
	case l.until.IsZero():
		delete(d.lines, l.from)
	}
	if among == l.among {
		return
	}
	if l.among != nil {
		l.among.Remove(l.place)
	}
	if l.among = among; among != nil {
		l.place = among.PushBack(l)
	}
}

// serve gives out what places there are. It needs mu.
func (d *desk) serve() {
	for d.free > 0 {
		var next *asking
		switch {
		case d.again.Len() > 0:
			next = d.again.Remove(d.again.Front()).(*asking)
		case d.honest.Len() > 0:
			next = d.first(d.honest, 0)
		case d.doubtful.Len() > 0 && d.spent < allowance:
			// Any of them: where many wait in vain, the last would have no more patience when it is their turn.
			next = d.first(d.doubtful, rand.IntN(d.doubtful.Front().Value.(*line).waiting.Len()))
			next.paid = true
			d.spend()
		default:
			return
		}
		d.free--
		close(next.turn)
	}
}

// first takes one out of the first of the lines, which becomes the last. It needs mu.
func (d *desk) first(lines *list.List, n int) *asking {
	l := lines.Front().Value.(*line)
	which := l.waiting.Front()
	for range n {
		which = which.Next()
	}
	lines.MoveToBack(l.place)
	next := l.waiting.Remove(which).(*asking)
	d.put(l)
	return next
}
