package transport

import "net/netip"

// Doubts reports whether a source has had a handshake in vain lately.
func (s *Source) Doubts(from string) bool {
	d := s.gate.desk
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lines[netip.MustParseAddr(from)]
	return l != nil && !l.until.IsZero()
}
