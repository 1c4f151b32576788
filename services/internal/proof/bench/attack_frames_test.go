package bench

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/net/http2"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// silent opens a connection and sends nothing. When the server closes the connection, silent opens the next one.
func (a *attacker) silent(port, addr string) {
	for a.ctx.Err() == nil {
		conn := a.open(addr)
		if conn == nil {
			a.seen.add("silent "+port, "refused")
			continue
		}
		a.waiting.Add(1)
		_, _ = conn.Read(make([]byte, 1)) // returns when the server closes the connection
		a.waiting.Add(-1)
		_ = conn.Close()
		if a.ctx.Err() == nil {
			a.seen.add("silent "+port, "closed")
		}
	}
}

// dripping is a connection that writes one byte at a time.
type dripping struct{ net.Conn }

func (d dripping) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		<-time.After(100 * time.Millisecond)
		_, err = d.Conn.Write(p[n : n+1])
		n++
	}
	return n, err
}

// slow performs a TLS handshake one byte at a time. The port for probes has no TLS, so slow sends an HTTP request to
// that port in the same way.
func (a *attacker) slow(port, addr string) {
	for a.ctx.Err() == nil {
		conn := a.open(addr)
		if conn == nil {
			continue
		}
		var err error
		if port == healthPort {
			_, err = dripping{conn}.Write([]byte("GET /metrics HTTP/1.1\r\nHost: " + strings.Repeat("x", 200) +
				"\r\n\r\n"))
			if err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
		} else {
			err = tls.Client(dripping{conn}, a.tls(nil)).HandshakeContext(a.ctx)
		}
		switch {
		case a.ctx.Err() != nil:
		case err == nil:
			a.seen.add("slow "+port, "accepted")
		default:
			a.seen.add("slow "+port, "closed")
		}
		_ = conn.Close()
	}
}

// connections returns attacks on new connections, before any call.
func (a *attacker) connections() (list []attack) {
	for _, port := range append([]string{healthPort}, tlsPorts...) {
		list = append(list, attack{"noise", port, func() string {
			conn := a.open(a.Ports[port])
			if conn == nil {
				return "refused"
			}
			defer conn.Close()
			return fate(conn, noise4K())
		}, 20 * time.Millisecond})
	}
	for _, port := range tlsPorts {
		list = append(list, attack{"noise in TLS", port, func() string {
			conn := a.open(a.Ports[port])
			if conn == nil {
				return "refused"
			}
			defer conn.Close()
			return fate(tls.Client(conn, a.tls(a.certs["agent"])), noise4K())
		}, 20 * time.Millisecond}, attack{"TLS 1.2", port, func() string {
			conn := a.open(a.Ports[port])
			if conn == nil {
				return "refused"
			}
			defer conn.Close()
			config := a.tls(a.certs["agent"])
			config.MinVersion, config.MaxVersion = tls.VersionTLS10, tls.VersionTLS12
			if err := tls.Client(conn, config).HandshakeContext(a.ctx); err == nil {
				return "accepted"
			}
			return "closed"
		}, 20 * time.Millisecond})
	}
	return list
}

func noise4K() []byte {
	raw := make([]byte, 4096)
	_, _ = rand.Read(raw)
	return raw
}

// fate sends the given bytes on a connection, and returns how the connection ended.
func fate(conn net.Conn, say []byte) string {
	if _, err := conn.Write(say); err != nil {
		return "closed"
	}
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		return "kept"
	}
	return "closed"
}

// writeTime is the time within which the server must read everything that an attacker writes to a raw connection.
const writeTime = 5 * time.Second

// raw opens a connection on which the attacker can send any HTTP/2 frames. It uses an agent's certificate. Every port
// accepts a connection with that certificate, but may refuse calls on it.
func (a *attacker) raw(port string, settings ...http2.Setting) *transporttest.Raw {
	conn := a.open(a.Ports[port])
	if conn == nil {
		return nil
	}
	client := tls.Client(conn, a.tls(a.certs["agent"]))
	raw, err := transporttest.NewRaw(client, settings...)
	if err != nil {
		_ = conn.Close()
		return nil
	}
	_ = client.SetWriteDeadline(time.Now().Add(writeTime))
	return raw
}

// frames returns attacks that abuse HTTP/2. Each lasts one second, or until the server closes the connection.
func (a *attacker) frames() (list []attack) {
	for _, port := range tlsPorts {
		method := methods[port].name
		if port == agentPort {
			method = nstancev1.AgentService_ReportHealth_FullMethodName
		}
		add := func(kind string, pace time.Duration, run func(r *transporttest.Raw, until time.Time) string,
			settings ...http2.Setting) {
			list = append(list, attack{kind, port, func() string {
				r := a.raw(port, settings...)
				if r == nil {
					return "refused"
				}
				defer r.Conn.Close()
				return run(r, time.Now().Add(time.Second))
			}, pace})
		}
		// CVE-2023-44487: the attacker opens and resets streams as fast as possible.
		add("rapid reset", time.Millisecond, func(r *transporttest.Raw, until time.Time) string {
			return flood(r, until, func(out *http2.Framer, n uint32) error {
				if err := out.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*n + 1, BlockFragment: r.Fields(method),
					EndHeaders: true}); err != nil {
					return err
				}
				return out.WriteRSTStream(2*n+1, http2.ErrCodeCancel)
			})
		})
		add("continuation flood", time.Millisecond, func(r *transporttest.Raw, _ time.Time) string {
			block := r.Block("x", strings.Repeat("x", 8000))
			return flood(r, time.Now().Add(20*time.Second), func(out *http2.Framer, n uint32) error {
				if n == 0 {
					return out.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.Fields(method)})
				}
				return out.WriteContinuation(1, false, block)
			})
		})
		add("huge headers", 10*time.Millisecond, func(r *transporttest.Raw, _ time.Time) string {
			if r.Call(1, method, "x", strings.Repeat("x", 12<<10)) != nil {
				return "closed"
			}
			return r.Reset(1, 10*time.Second)
		})
		add("settings flood", time.Millisecond, func(r *transporttest.Raw, until time.Time) string {
			return flood(r, until, func(out *http2.Framer, _ uint32) error {
				return out.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 16 << 10})
			})
		})
		add("ping flood", time.Millisecond, func(r *transporttest.Raw, _ time.Time) string {
			return flood(r, time.Now().Add(20*time.Second), func(out *http2.Framer, n uint32) error {
				return out.WritePing(false, [8]byte{byte(n)})
			})
		})
		add("window flood", time.Millisecond, func(r *transporttest.Raw, until time.Time) string {
			return flood(r, until, func(out *http2.Framer, n uint32) error { return out.WriteWindowUpdate(0, 1) })
		})
		// left opens 200 streams and leaves them open. If message is not 0, each stream carries a part of a message of
		// that size.
		left := func(message int) func(*transporttest.Raw, time.Time) string {
			return func(r *transporttest.Raw, until time.Time) string {
				for n := range uint32(200) {
					if r.Call(2*n+1, method) != nil || message > 0 && r.Part(2*n+1, message, make([]byte, 100)) != nil {
						return "closed"
					}
				}
				if how := r.End(time.Until(until)); how != "open" {
					return how
				}
				return "left"
			}
		}
		add("streams left", time.Millisecond, left(0))
		add("slow body", time.Millisecond, left(16000))
		add("no window", 10*time.Millisecond, func(r *transporttest.Raw, until time.Time) string {
			if r.Call(1, method) != nil || r.WriteData(1, true, make([]byte, 5)) != nil {
				return "closed"
			}
			if how := r.End(time.Until(until)); how != "open" {
				return how
			}
			return "left"
		}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	}
	return list
}

// flood writes frames as fast as the server reads them, and reads the answers.
func flood(r *transporttest.Raw, until time.Time, write func(out *http2.Framer, n uint32) error) string {
	ended := make(chan string, 1)
	go func() { ended <- r.End(time.Until(until) + 5*time.Second) }()
	buffered := bufio.NewWriterSize(r.Conn, 16<<10)
	out := http2.NewFramer(buffered, bytes.NewReader(nil))
	out.AllowIllegalWrites = true
	if time.Until(until) < writeTime { // the server may not be reading by then
		_ = r.Conn.SetWriteDeadline(until)
	}
	var err error
	for n := uint32(0); err == nil && time.Now().Before(until) && n < 1<<29; n++ {
		err = write(out, n)
	}
	if err == nil {
		select {
		case how := <-ended:
			return how
		default:
			return "taken"
		}
	}
	_ = r.Conn.Close()
	return <-ended
}
