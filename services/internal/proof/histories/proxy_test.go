package histories

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fault is what a proxy does to a request.
type fault int

const (
	none       fault = iota
	slow             // forwarded after a pause, answered
	cut              // the connection ends before the server receives the request
	lost             // the server handles the request, but the answer never arrives
	late             // no answer; the server handles the request much later
	halfOpen         // accepted, never answered, not forwarded
	refused          // 503, not forwarded
	faultKinds       // number of faults
)

var faultNames = [...]string{"none", "slow", "cut", "lost", "late", "half-open", "refused"}

// proxy is an unreliable proxy of an S3 server. Each client has its own proxy, so that clients can be cut off one by
// one.
type proxy struct {
	url string

	upstream *http.Client
	longest  time.Duration // the longest pause
	seed     uint64
	counts   [faultKinds]atomic.Int64
	running  sync.WaitGroup
	ended    chan struct{}
	mu       sync.Mutex
	rng      *rand.Rand
	weights  [faultKinds]int
}

// newProxy starts a proxy to a server on a Unix socket. When the test ends, the proxy forwards the requests that it has
// not forwarded yet.
func newProxy(t *testing.T, socket string, seed uint64, longest time.Duration) *proxy {
	t.Helper()
	p := &proxy{longest: longest, seed: seed, ended: make(chan struct{}), rng: rand.New(rand.NewPCG(seed, 1)),
		upstream: &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn,
			error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}}
	p.weights[none] = 1
	server := httptest.NewServer(p)
	p.url = server.URL
	t.Cleanup(func() {
		close(p.ended)
		server.CloseClientConnections()
		server.Close()
		p.running.Wait()
	})
	return p
}

// set sets a weight for each fault. A fault with a higher weight occurs more often.
func (p *proxy) set(weights map[fault]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.weights = [faultKinds]int{}
	for f, w := range weights {
		p.weights[f] = w
	}
}

// next draws a fault and its duration.
func (p *proxy) next() (fault, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := 0
	for _, w := range p.weights {
		sum += w
	}
	pick := p.rng.IntN(sum)
	for f, w := range p.weights {
		if pick -= w; pick < 0 {
			return fault(f), time.Duration(p.rng.Int64N(int64(p.longest)))
		}
	}
	panic("unreachable")
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	what, pause := p.next()
	p.counts[what].Add(1)
	switch what {
	case none, slow:
		if what == slow && !p.wait(r.Context(), pause/4) {
			return
		}
		resp, err := p.forward(r, body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer resp.Body.Close()
		for name, values := range resp.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body) // an error means that the client has hung up
	case cut:
		panic(http.ErrAbortHandler)
	case lost:
		p.drop(r, body)
		panic(http.ErrAbortHandler)
	case late:
		p.running.Go(func() {
			p.wait(context.Background(), pause)
			p.drop(r, body)
		})
		panic(http.ErrAbortHandler)
	case halfOpen:
		<-r.Context().Done()
	case refused:
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// wait waits for d. It returns false if ctx or the test ends first.
func (p *proxy) wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-p.ended:
	}
	return false
}

// forward forwards the request unchanged, because the signature covers its headers.
func (p *proxy) forward(r *http.Request, body []byte) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 10*time.Second)
	out, err := http.NewRequestWithContext(ctx, r.Method, "http://"+r.Host+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		cancel()
		return nil, err
	}
	for name, values := range r.Header {
		if !strings.EqualFold(name, "Connection") {
			out.Header[name] = values
		}
	}
	resp, err := p.upstream.Do(out)
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &canceling{ReadCloser: resp.Body, cancel: cancel}
	return resp, nil
}

func (p *proxy) drop(r *http.Request, body []byte) {
	if resp, err := p.forward(r, body); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

type canceling struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (c *canceling) Close() error {
	defer c.cancel()
	return c.ReadCloser.Close()
}
