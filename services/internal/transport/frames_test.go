package transport

import (
	"bytes"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// said is what a client says after its preface.
func said(tb testing.TB, write func(f *http2.Framer) error) []byte {
	tb.Helper()
	buffer := bytes.NewBufferString(http2.ClientPreface)
	framer := http2.NewFramer(buffer, nil)
	framer.AllowIllegalWrites = true
	if err := write(framer); err != nil {
		tb.Fatal(err)
	}
	return buffer.Bytes()
}

var kinds = []struct {
	name  string
	want  time.Duration
	write func(f *http2.Framer) error
}{
	{"nothing", 0, func(*http2.Framer) error { return nil }},
	{"DATA", priceFrame, func(f *http2.Framer) error { return f.WriteData(1, true, make([]byte, 16384)) }},
	{"empty DATA", priceFrame, func(f *http2.Framer) error { return f.WriteData(1, true, nil) }},
	{"HEADERS", priceStream, func(f *http2.Framer) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, 300)})
	}},
	{"PRIORITY", priceFrame, func(f *http2.Framer) error { return f.WritePriority(1, http2.PriorityParam{}) }},
	{"RST_STREAM", priceReset, func(f *http2.Framer) error { return f.WriteRSTStream(1, http2.ErrCodeCancel) }},
	{"SETTINGS", priceAnswer, func(f *http2.Framer) error { return f.WriteSettings(http2.Setting{ID: 1, Val: 1}) }},
	{"SETTINGS acknowledged", priceFrame, func(f *http2.Framer) error { return f.WriteSettingsAck() }},
	{"PING", priceAnswer, func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) }},
	{"PING acknowledged", priceFrame, func(f *http2.Framer) error { return f.WritePing(true, [8]byte{}) }},
	{"GOAWAY", priceFrame, func(f *http2.Framer) error { return f.WriteGoAway(0, 0, []byte("bye")) }},
	{"WINDOW_UPDATE", priceFrame, func(f *http2.Framer) error { return f.WriteWindowUpdate(0, 1) }},
	{"CONTINUATION", priceFrame, func(f *http2.Framer) error {
		return f.WriteContinuation(1, true, make([]byte, 100))
	}},
	{"of no known sort, a MiB", priceFrame, func(f *http2.Framer) error {
		return f.WriteRawFrame(0xfa, 0xff, 7, make([]byte, 1<<20))
	}},
}

// Every frame has its price, whatever was before it.
func TestPriceOfFrames(t *testing.T) {
	for _, before := range kinds {
		for _, kind := range kinds {
			raw := said(t, func(f *http2.Framer) error {
				if err := before.write(f); err != nil {
					return err
				}
				return kind.write(f)
			})
			want := before.want + kind.want + time.Duration(len(raw))*pricePerByte
			if got := new(frames).price(raw); got != want {
				t.Errorf("%s after %s: %s, want %s", kind.name, before.name, got, want)
			}
		}
	}
	// It is paid before its payload is there, and not twice.
	raw := said(t, func(f *http2.Framer) error { return f.WriteRawFrame(frameHeaders, 0, 1, make([]byte, 100)) })
	var f frames
	if got, want := f.price(raw[:prefaceBytes+headBytes]), priceStream+
		(prefaceBytes+headBytes)*pricePerByte; got != want {
		t.Errorf("the head of HEADERS: %s, want %s", got, want)
	}
	if got, want := f.price(raw[prefaceBytes+headBytes:]), 100*pricePerByte; got != want {
		t.Errorf("the payload of HEADERS: %s, want %s", got, want)
	}
}

// What a client says costs the same however it is cut, and that is what its frames cost as they lie one behind the
// other.
func FuzzFrames(f *testing.F) {
	for _, kind := range kinds[:len(kinds)-1] {
		f.Add(said(f, kind.write), uint16(7))
	}
	f.Add([]byte("GET /metrics HTTP/1.1\r\nHost: example\r\n\r\n"), uint16(1))
	f.Add(said(f, func(*http2.Framer) error { return nil })[:23], uint16(30))
	f.Fuzz(func(t *testing.T, raw []byte, size uint16) {
		want := time.Duration(len(raw)) * pricePerByte
		for at := prefaceBytes; at+headBytes <= len(raw); at += headBytes +
			(int(raw[at])<<16 | int(raw[at+1])<<8 | int(raw[at+2])) {
			want += priceOf(raw[at+3], raw[at+4])
		}
		for _, n := range []int{max(len(raw), 1), 1, int(size)%len(append(raw, 0)) + 1} {
			var f frames
			var got time.Duration
			for rest := raw; len(rest) > 0; rest = rest[min(n, len(rest)):] {
				got += f.price(rest[:min(n, len(rest))])
			}
			if got != want {
				t.Errorf("%d bytes at a time: %s, want %s", n, got, want)
			}
		}
	})
}
