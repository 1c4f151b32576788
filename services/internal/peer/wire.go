package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/election"
)

// A frame is one message: its kind, then its fields. Numbers are unsigned varints, and texts are preceded by their
// length. Each message has exactly one valid frame. Frames with trailing bytes or with overlong numbers are rejected.
const (
	kindHello byte = iota + 1
	kindHeartbeat
	kindPromise
	kindFarewell
	kindTaken
)

const (
	// maxFrame is the largest frame in bytes. It has room for a lock whose texts have their maximum length and every
	// byte escaped.
	maxFrame = 64 << 10
	// maxText is the longest text except the lock, in bytes.
	maxText = 1024
	// maxNumber is above every term and heartbeat.
	maxNumber = 1 << 62
	// maxLength is the longest promise that a message may ask for.
	maxLength = time.Minute
)

// hello is the first message in either direction. The certificate also contains the ID.
type hello struct{ from election.Peer }

// encode returns the frame of a hello or an election.Message.
func encode(message any) ([]byte, error) {
	var w writer
	switch m := message.(type) {
	case hello:
		w.byte(kindHello)
		w.peer(m.from)
	case election.Heartbeat:
		lock, err := record.EncodeLock(m.Lock)
		if err != nil {
			return nil, err
		}
		w.byte(kindHeartbeat)
		w.peer(m.Leader)
		w.peer(m.Standby)
		w.number(m.Term)
		w.number(m.Beat)
		w.number(uint64(max(0, m.Length)))
		w.text(string(m.Token))
		w.text(string(lock))
	case election.Promise:
		w.byte(kindPromise)
		w.peer(m.Leader)
		w.peer(m.Standby)
		w.number(m.Term)
		w.number(m.Beat)
		w.number(uint64(max(0, m.Length)))
	case election.Handover:
		w.byte(kindFarewell)
		w.peer(m.Leader)
		w.peer(m.Standby)
		w.number(m.Term)
	case election.TookOver:
		w.byte(kindTaken)
		w.peer(m.Leader)
		w.peer(m.Standby)
		w.number(m.Term)
	default:
		return nil, fmt.Errorf("encode %T: it is no message", message)
	}
	if len(w) > maxFrame {
		return nil, fmt.Errorf("encode %T: %d bytes are too many", message, len(w))
	}
	return w, nil
}

// decode parses a frame into a hello or an election.Message.
func decode(frame []byte) (any, error) {
	message, err := decodeFrame(frame)
	if err != nil {
		return nil, fmt.Errorf("decode message of a server: %w", err)
	}
	return message, nil
}

func decodeFrame(frame []byte) (any, error) {
	if len(frame) == 0 || len(frame) > maxFrame {
		return nil, fmt.Errorf("it has %d bytes", len(frame))
	}
	r := reader{rest: frame[1:]}
	var message any
	switch frame[0] {
	case kindHello:
		message = hello{from: r.peer()}
	case kindHeartbeat:
		m := election.Heartbeat{Leader: r.peer(), Standby: r.peer(), Term: r.number(), Beat: r.number(),
			Length: r.length(), Token: objstore.Token(r.text(maxText))}
		lock := r.text(maxFrame)
		if r.err == nil {
			m.Lock, r.err = decodeLock(lock)
		}
		message = m
	case kindPromise:
		message = election.Promise{Leader: r.peer(), Standby: r.peer(), Term: r.number(), Beat: r.number(),
			Length: r.length()}
	case kindFarewell:
		message = election.Handover{Leader: r.peer(), Standby: r.peer(), Term: r.number()}
	case kindTaken:
		message = election.TookOver{Leader: r.peer(), Standby: r.peer(), Term: r.number()}
	default:
		return nil, fmt.Errorf("its kind is %d", frame[0])
	}
	if r.err == nil && len(r.rest) > 0 {
		r.err = fmt.Errorf("%d bytes are left over", len(r.rest))
	}
	return message, r.err
}

// decodeLock parses a lock and accepts only the exact bytes that EncodeLock writes.
func decodeLock(text string) (record.Lock, error) {
	lock, err := record.DecodeLock([]byte(text))
	if err != nil {
		return record.Lock{}, err
	}
	if again, err := record.EncodeLock(lock); err != nil || string(again) != text {
		return record.Lock{}, errors.New("the lock is not in canonical form")
	}
	return lock, nil
}

type writer []byte

func (w *writer) byte(b byte)          { *w = append(*w, b) }
func (w *writer) number(n uint64)      { *w = binary.AppendUvarint(*w, n) }
func (w *writer) text(s string)        { *w = append(binary.AppendUvarint(*w, uint64(len(s))), s...) }
func (w *writer) peer(p election.Peer) { w.text(p.ID); w.text(p.Incarnation) }

// reader reads fields. After the first error it returns zero values.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
	r.rest = nil
}

func (r *reader) number() uint64 {
	n, size := binary.Uvarint(r.rest)
	switch {
	case r.err != nil:
		return 0
	case size <= 0:
		r.fail("a number is cut off or too large")
		return 0
	case size > 1 && r.rest[size-1] == 0:
		r.fail("a number is not in its shortest encoding")
		return 0
	case n >= maxNumber:
		r.fail("the number %d is too large", n)
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *reader) text(most int) string {
	n := r.number()
	if r.err != nil {
		return ""
	}
	if n > uint64(len(r.rest)) || n > uint64(most) {
		r.fail("a text of %d bytes does not fit", n)
		return ""
	}
	text := string(r.rest[:n])
	r.rest = r.rest[n:]
	return text
}

// peer reads a process's name, both parts of which are required.
func (r *reader) peer() election.Peer {
	p := election.Peer{ID: r.text(maxText), Incarnation: r.text(maxText)}
	if r.err == nil && (p.ID == "" || p.Incarnation == "") {
		r.fail("a process has no name")
	}
	return p
}

// length reads the length of a promise.
func (r *reader) length() time.Duration {
	n := r.number()
	if r.err == nil && (n == 0 || n > uint64(maxLength)) {
		r.fail("a promise of %d ns", n)
	}
	return time.Duration(n)
}
