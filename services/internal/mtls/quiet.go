package mtls

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// recordHeader is the size of what each TLS record begins with: type, version, length (RFC 8446, section 5.1).
const recordHeader = 5

// records is a connection from which nobody gets more than what is left of the present TLS record. So whoever has read a record knows that nothing
// of the next has been read with it, and may wait for that here.
type records struct {
	net.Conn
	header [recordHeader]byte
	read   int // bytes of header that have been read
	given  int // and that were given on
	left   int // bytes of the record after its header that are still to come
}

// await waits for the first byte of the next record.
func (r *records) await() error {
	for r.read == 0 && r.left == 0 {
		n, err := r.Conn.Read(r.header[:])
		r.read = n
		if n == 0 && err != nil {
			return err
		}
	}
	return nil
}

func (r *records) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if r.left == 0 && r.given == 0 {
		if err := r.complete(); err != nil {
			return 0, err
		}
	}
	if r.given < r.read {
		n := copy(p, r.header[r.given:r.read])
		if r.given += n; r.given == r.read {
			r.given, r.read = 0, 0
		}
		return n, nil
	}
	n, err := r.Conn.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}

// complete reads the rest of a header.
func (r *records) complete() error {
	if err := r.await(); err != nil {
		return err
	}
	if r.read < recordHeader {
		n, err := io.ReadFull(r.Conn, r.header[r.read:])
		if r.read += n; err != nil {
			return err
		}
	}
	r.left = int(binary.BigEndian.Uint16(r.header[3:]))
	return nil
}

// CloseWrite says that nothing more will be sent.
func (r *records) CloseWrite() error {
	if half, ok := r.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.New("cannot be closed by halves")
}

// quiet is an established connection on which nearly nothing is said. It waits for the next record with little on its stack, and decrypts it on
// another: see Aside.
type quiet struct {
	*tls.Conn
	raw    *records
	buffer *[]byte // of plaintexts; nil while rest is empty
	rest   []byte  // what was decrypted and not yet read
	err    error   // that came with it
}

// plaintexts are buffers for one record each.
var plaintexts = sync.Pool{New: func() any { buffer := make([]byte, 16<<10); return &buffer }}

// Read is called by one goroutine at a time.
func (q *quiet) Read(p []byte) (n int, err error) {
	if len(q.rest) == 0 {
		if q.err != nil {
			return 0, q.err
		}
		if err := q.raw.await(); err != nil {
			return 0, err
		}
		Aside(q.decrypt)
	}
	n = copy(p, q.rest)
	if q.rest = q.rest[n:]; len(q.rest) > 0 {
		return n, nil
	}
	if q.buffer != nil {
		plaintexts.Put(q.buffer)
		q.buffer, q.rest = nil, nil
	}
	if n == 0 && len(p) > 0 {
		return 0, q.err
	}
	return n, nil
}

func (q *quiet) decrypt() {
	q.buffer = plaintexts.Get().(*[]byte)
	var n int
	n, q.err = q.Conn.Read(*q.buffer)
	q.rest = (*q.buffer)[:n]
}
