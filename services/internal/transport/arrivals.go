package transport

import (
	"container/list"
	"net"
)

// arrivals are connections in the order in which they came: of all, and of each to whom they belong. They are not safe
// for concurrent use.
type arrivals[K comparable] struct {
	all *list.List       // of *arrival[K], oldest first
	of  map[K]*list.List // the same, by whose they are; nobody's list is empty
}

type arrival[K comparable] struct {
	whose        K
	conn         net.Conn
	place, among *list.Element // in all and in of; nil once it has left
}

func newArrivals[K comparable]() arrivals[K] {
	return arrivals[K]{list.New(), map[K]*list.List{}}
}

func (a arrivals[K]) add(whose K, conn net.Conn) *arrival[K] {
	own := a.of[whose]
	if own == nil {
		own = list.New()
		a.of[whose] = own
	}
	n := &arrival[K]{whose: whose, conn: conn}
	n.place, n.among = a.all.PushBack(n), own.PushBack(n)
	return n
}

// remove reports whether it was still there.
func (a arrivals[K]) remove(n *arrival[K]) bool {
	if n.place == nil {
		return false
	}
	a.all.Remove(n.place)
	own := a.of[n.whose]
	if own.Remove(n.among); own.Len() == 0 {
		delete(a.of, n.whose)
	}
	n.place, n.among = nil, nil
	return true
}

// evict closes the oldest of all, which must not be none, removes it and says whose it was.
func (a arrivals[K]) evict() (whose K) { return a.cut(a.all) }

// evictOf is evict among those of one.
func (a arrivals[K]) evictOf(whose K) { a.cut(a.of[whose]) }

func (a arrivals[K]) cut(among *list.List) (whose K) {
	n := among.Front().Value.(*arrival[K])
	a.remove(n)
	n.conn.Close()
	return n.whose
}

func (a arrivals[K]) len() int { return a.all.Len() }

// count is how many there are of one.
func (a arrivals[K]) count(whose K) int {
	if own := a.of[whose]; own != nil {
		return own.Len()
	}
	return 0
}
