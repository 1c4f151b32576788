package transport

import "testing"

func TestArrivals(t *testing.T) {
	a := newArrivals[string]()
	conns := map[string]*stub{}
	add := func(whose, name string) *arrival[string] {
		conns[name] = &stub{}
		return a.add(whose, conns[name])
	}
	a1 := add("a", "a1")
	add("b", "b1")
	add("a", "a2")
	a3 := add("a", "a3")
	if !a.remove(a1) || a.remove(a1) || conns["a1"].closed {
		t.Error("who leaves has left once, and is not cut")
	}
	if a.evictOf("a"); !conns["a2"].closed || conns["b1"].closed || conns["a3"].closed {
		t.Errorf("the oldest of a: %v", conns)
	}
	if whose := a.evict(); whose != "b" || !conns["b1"].closed || conns["a3"].closed {
		t.Errorf("the oldest of all: %s, %v", whose, conns)
	}
	if a.len() != 1 || a.count("a") != 1 || a.count("b") != 0 {
		t.Errorf("%d are left, %d of a, %d of b; want 1, 1, 0", a.len(), a.count("a"), a.count("b"))
	}
	if a.remove(a3); a.len() != 0 || len(a.of) != 0 {
		t.Errorf("%d and %d are left", a.len(), len(a.of))
	}
}
