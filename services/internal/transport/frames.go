package transport

import (
	"encoding/binary"
	"time"
)

// The frames of HTTP/2 that have a price of their own, RFC 9113 section 6.
const (
	frameHeaders  = 0x1
	frameReset    = 0x3
	frameSettings = 0x4
	framePing     = 0x6
	flagAck       = 0x1

	prefaceBytes, headBytes = 24, 9 // RFC 9113, sections 3.4 and 4.1
)

// What it may cost the server to be told something, in processor time, the handler included where it refuses.
// BenchmarkFrames shows a tenth of that in a flood; a frame that comes alone has a goroutine woken for it, and its
// answer fills a packet. Bytes alone say little: to open a stream and reset it at once are sixty of them.
const (
	priceStream    = 60 * time.Microsecond // HEADERS: a stream, a goroutine for its handler, and an answer
	priceReset     = 10 * time.Microsecond
	priceAnswer    = 15 * time.Microsecond   // SETTINGS and PING: an answer, often in a packet of its own
	priceFrame     = 5 * time.Microsecond    // all others
	pricePerByte   = 10 * time.Nanosecond    // to decrypt, copy and parse it
	priceHandshake = 1500 * time.Microsecond // both signatures, and the connection's goroutines
)

// frames follows what a client says on one connection, frame by frame, however it is cut into reads. What is no HTTP/2
// it takes for frames, too: such a connection ends soon. The zero value is at the beginning.
type frames struct {
	left    uint32 // of the frame's payload
	preface uint8  // how much of it was there
	have    uint8  // of head
	head    [headBytes]byte
}

// price is that of the next bytes. A frame is paid for when its head is there, before anybody acts on it.
func (f *frames) price(said []byte) time.Duration {
	total := time.Duration(len(said)) * pricePerByte
	for len(said) > 0 {
		switch {
		case f.preface < prefaceBytes:
			n := min(int(prefaceBytes-f.preface), len(said))
			f.preface += uint8(n) //nolint:gosec // at most 24
			said = said[n:]
		case f.left > 0:
			n := min(int(f.left), len(said))
			f.left -= uint32(n) //nolint:gosec // at most left
			said = said[n:]
		default:
			n := copy(f.head[f.have:], said)
			f.have += uint8(n) //nolint:gosec // at most 9
			said = said[n:]
			if f.have == headBytes {
				f.have = 0
				f.left = binary.BigEndian.Uint32(f.head[:4]) >> 8
				total += priceOf(f.head[3], f.head[4])
			}
		}
	}
	return total
}

func priceOf(kind, flags byte) time.Duration {
	switch {
	case kind == frameHeaders:
		return priceStream
	case kind == frameReset:
		return priceReset
	case (kind == frameSettings || kind == framePing) && flags&flagAck == 0:
		return priceAnswer
	}
	return priceFrame
}
