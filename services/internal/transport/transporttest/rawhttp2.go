package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Raw is a client's end of an HTTP/2 connection on which anything may be written, also what no client would write.
// Frames go out as they are written, one write each.
type Raw struct {
	net.Conn
	*http2.Framer
	block bytes.Buffer
	hpack *hpack.Encoder
}

// NewRaw begins HTTP/2 on a connection that has h2 negotiated.
func NewRaw(conn net.Conn, settings ...http2.Setting) (*Raw, error) {
	r := &Raw{Conn: conn, Framer: http2.NewFramer(conn, conn)}
	r.Framer.AllowIllegalWrites = true
	r.hpack = hpack.NewEncoder(&r.block)
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		return nil, err
	}
	return r, r.WriteSettings(settings...)
}

// Fields is the header block of a gRPC call, with further fields in pairs of name and value.
func (r *Raw) Fields(method string, more ...string) []byte {
	return r.Block(append([]string{":method", "POST", ":scheme", "https", ":path", method, ":authority", "127.0.0.1",
		"content-type", "application/grpc", "te", "trailers"}, more...)...)
}

// Block is a header block, or a part of one, of pairs of name and value.
func (r *Raw) Block(fields ...string) []byte {
	r.block.Reset()
	for pair := range pairs(fields) {
		_ = r.hpack.WriteField(hpack.HeaderField{Name: pair[0], Value: pair[1]}) // a buffer takes everything
	}
	return bytes.Clone(r.block.Bytes())
}

func pairs(list []string) func(func([2]string) bool) {
	return func(yield func([2]string) bool) {
		for ; len(list) > 1 && yield([2]string{list[0], list[1]}); list = list[2:] {
		}
	}
}

// Call begins a call. Streams of clients have odd numbers that rise.
func (r *Raw) Call(stream uint32, method string, more ...string) error {
	return r.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: r.Fields(method, more...),
		EndHeaders: true})
}

// Part sends the beginning of a message of the given size: less is left to do for who never ends it.
func (r *Raw) Part(stream uint32, size int, part []byte) error {
	head := []byte{0, byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)}
	return r.WriteData(stream, false, append(head, part...))
}

// End reads until the server ends the connection and says how it did: "closed", "GOAWAY CODE", or "open" when it did
// not in time.
func (r *Raw) End(within time.Duration) string {
	how := "closed"
	if err := r.SetReadDeadline(time.Now().Add(within)); err != nil {
		return how
	}
	for {
		frame, err := r.ReadFrame()
		switch f := frame.(type) {
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeNo {
				how = fmt.Sprintf("GOAWAY %s", f.ErrCode)
			}
			continue
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return "open"
		case err != nil && !errors.As(err, new(http2.StreamError)):
			return how
		}
	}
}

// Reset reads until the server has ended a stream and says how: "RST CODE", "answered", or as End does.
func (r *Raw) Reset(stream uint32, within time.Duration) string {
	if err := r.SetReadDeadline(time.Now().Add(within)); err != nil {
		return "closed"
	}
	for {
		frame, err := r.ReadFrame()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return "open"
			}
			return "closed"
		}
		switch f := frame.(type) {
		case *http2.RSTStreamFrame:
			if f.StreamID == stream {
				return fmt.Sprintf("RST %s", f.ErrCode)
			}
		case *http2.HeadersFrame:
			if f.StreamID == stream && f.StreamEnded() {
				return "answered"
			}
		}
	}
}
