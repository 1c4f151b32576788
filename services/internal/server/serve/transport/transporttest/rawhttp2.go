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

// Raw is the client side of an HTTP/2 connection that may write anything, including frames that no correct client
// writes. Each frame is sent with one write.
type Raw struct {
	net.Conn
	*http2.Framer
	block bytes.Buffer
	hpack *hpack.Encoder
}

// NewRaw starts HTTP/2 on a connection that has negotiated h2.
func NewRaw(conn net.Conn, settings ...http2.Setting) (*Raw, error) {
	r := &Raw{Conn: conn, Framer: http2.NewFramer(conn, conn)}
	r.Framer.AllowIllegalWrites = true
	r.hpack = hpack.NewEncoder(&r.block)
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		return nil, err
	}
	return r, r.WriteSettings(settings...)
}

// Fields returns the header block of a gRPC call, with additional fields as pairs of name and value.
func (r *Raw) Fields(method string, more ...string) []byte {
	return r.Block(append([]string{":method", "POST", ":scheme", "https", ":path", method, ":authority", "127.0.0.1",
		"content-type", "application/grpc", "te", "trailers"}, more...)...)
}

// Block returns a header block, or a part of one, for pairs of name and value.
func (r *Raw) Block(fields ...string) []byte {
	r.block.Reset()
	for pair := range pairs(fields) {
		_ = r.hpack.WriteField(hpack.HeaderField{Name: pair[0], Value: pair[1]}) // a buffer accepts every write
	}
	return bytes.Clone(r.block.Bytes())
}

func pairs(list []string) func(func([2]string) bool) {
	return func(yield func([2]string) bool) {
		for ; len(list) > 1 && yield([2]string{list[0], list[1]}); list = list[2:] {
		}
	}
}

// Call starts a call. Client streams have ascending odd numbers.
func (r *Raw) Call(stream uint32, method string, more ...string) error {
	return r.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: r.Fields(method, more...),
		EndHeaders: true})
}

// Part sends the beginning of a gRPC message. The message's prefix announces the given size.
func (r *Raw) Part(stream uint32, size int, part []byte) error {
	head := []byte{0, byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)}
	return r.WriteData(stream, false, append(head, part...))
}

// End reads until the server ends the connection and returns how it ended: "closed" or "GOAWAY CODE". It returns "open"
// if the connection did not end within the given time.
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

// Reset reads until the server ends the stream and returns how the stream ended: "RST CODE" or "answered". It returns
// "closed" if the connection ended, and "open" if the stream did not end within the given time.
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
