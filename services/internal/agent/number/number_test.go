package number

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// programs are fake programs on a VM. takes is how long they take to answer.
type programs struct {
	mu      sync.Mutex
	answers map[string]string // by port and path
	takes   time.Duration
	calls   []string
	now     int
	most    int // of the requests at a time
}

func (p *programs) fetch(ctx context.Context, port uint32, path string) (io.ReadCloser, error) {
	at := fmt.Sprint(port, path)
	p.mu.Lock()
	p.calls = append(p.calls, at)
	p.now++
	p.most = max(p.most, p.now)
	answer, takes := p.answers[at], p.takes
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.now--
	}()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if answer == "" {
		return nil, fmt.Errorf("nobody listens")
	}
	return io.NopCloser(strings.NewReader(answer)), nil
}

func (p *programs) set(at, answer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers[at] = answer
}

func (p *programs) takeCalls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.calls)
	p.calls = nil
	return n
}

// reads lets a reader run while test runs. news counts the calls of the reader's function changed.
func reads(t *testing.T, p *programs, test func(t *testing.T, r *Reader, news func() int)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		count := 0
		r := New(p.fetch, func() {
			mu.Lock()
			defer mu.Unlock()
			count++
		})
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		test(t, r, func() int {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return count
		})
		cancel()
		<-done
	})
}

func spec(id uint64, port uint32, metric string) *nstancev1.VmNumber {
	return &nstancev1.VmNumber{Id: id, Port: port, Path: "/m", In: &nstancev1.VmNumber_Metric{Metric: metric}}
}

// texts returns the report of a reader as texts.
func texts(r *Reader) (out []string) {
	for _, s := range r.Report() {
		switch result := s.GetResult().(type) {
		case *nstancev1.VmNumberState_Problem:
			out = append(out, result.Problem)
		case *nstancev1.VmNumberState_Value:
			out = append(out, fmt.Sprint(result.Value))
		default:
			out = append(out, "")
		}
	}
	return out
}

func wants(t *testing.T, when string, r *Reader, want ...string) {
	t.Helper()
	if got := texts(r); !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", when, got, want)
	}
}

func TestReader(t *testing.T) {
	p := &programs{answers: map[string]string{"80/m": "a 1\nb 2\n", "81/m": "c -3\n"}}
	reads(t, p, func(t *testing.T, r *Reader, news func() int) {
		r.Due(time.Minute, time.Minute)
		time.Sleep(time.Hour)
		if n := p.takeCalls(); n != 0 || len(r.Report()) != 0 {
			t.Errorf("%d requests without numbers", n)
		}
		r.Set([]*nstancev1.VmNumber{spec(1, 80, "a"), spec(2, 80, "b"), spec(3, 81, "c"), spec(4, 82, "d")})
		if n := news(); n != 1 {
			t.Errorf("%d reports after the first reading, want 1", n)
		}
		wants(t, "at first", r, "1", "2", "127.0.0.1:81/m: the value -3", "127.0.0.1:82/m: nobody listens")
		if n := p.takeCalls(); n != 3 {
			t.Errorf("%d requests for three places", n)
		}

		r.Due(time.Minute, time.Minute)
		p.set("80/m", "a 5\nb NaN\n")
		time.Sleep(time.Minute - lead - time.Millisecond)
		wants(t, "before the next reading", r, "1", "2", "127.0.0.1:81/m: the value -3",
			"127.0.0.1:82/m: nobody listens")
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		wants(t, "at the next report", r, "5", "127.0.0.1:80/m: the value NaN", "127.0.0.1:81/m: the value -3",
			"127.0.0.1:82/m: nobody listens")
		if news() != 1 {
			t.Error("a reading before a report triggers a report")
		}
		r.Set([]*nstancev1.VmNumber{spec(5, 81, "e"), spec(1, 80, "a")})
		wants(t, "with a new number", r, "", "5")
		if got := r.IDs(); !slices.Equal(got, []uint64{5, 1}) {
			t.Errorf("IDs %v", got)
		}
		news()
		p.takeCalls()

		time.Sleep(3 * time.Minute) // without a session there is no report
		wants(t, "long ago", r, "127.0.0.1:81/m: no metric e", "it was not read for some time")
		if n := p.takeCalls(); n != 0 {
			t.Errorf("%d requests without a session", n)
		}
		r.Due(time.Minute, time.Minute)
		if n := news(); n != 3 {
			t.Errorf("%d reports, want a third with the new session", n)
		}
		wants(t, "with a new session", r, "127.0.0.1:81/m: no metric e", "5")
		p.takeCalls()
		r.Set(nil)
		time.Sleep(time.Hour)
		if n := p.takeCalls(); n != 0 || len(r.Report()) != 0 {
			t.Errorf("%d requests after the end", n)
		}
	})
}

// TestSlowPrograms checks that programs that hang delay no report, and that no more than some requests wait for them.
func TestSlowPrograms(t *testing.T) {
	p := &programs{answers: map[string]string{}, takes: time.Hour}
	var specs []*nstancev1.VmNumber
	for n := range 10 {
		specs = append(specs, spec(uint64(n), uint32(n), "a"))
	}
	reads(t, p, func(t *testing.T, r *Reader, news func() int) {
		r.Set(specs)
		before := time.Now()
		r.Due(time.Minute, time.Minute)
		if got := texts(r); len(got) != 10 || got[0] != "" || time.Since(before) != 0 {
			t.Errorf("%q after %v", got, time.Since(before))
		}
		time.Sleep(3 * timeout)
		if n := news(); n != 1 || p.most != maxReading {
			t.Errorf("%d reports after at most %d requests at a time", n, p.most)
		}
		if got := texts(r); got[9] != "127.0.0.1:9/m: no complete answer within 2s" {
			t.Errorf("%q", got)
		}
	})
}

// TestCounter checks that a counter counts as its growth per second.
func TestCounter(t *testing.T) {
	p := &programs{answers: map[string]string{"80/m": "# TYPE a counter\na 1000\n"}}
	answer := func(text string) { p.set("80/m", "# TYPE a counter\na "+text+"\n") }
	reads(t, p, func(t *testing.T, r *Reader, news func() int) {
		r.Set([]*nstancev1.VmNumber{spec(1, 80, "a")})
		news()
		wants(t, "at first", r, "")
		answer("1100")
		r.Due(lead+10*time.Second, time.Minute)
		time.Sleep(11 * time.Second)
		wants(t, "after 100 in 10 s", r, "10")
		answer("1101")
		r.Due(lead+time.Second, time.Minute)
		time.Sleep(2 * time.Second)
		wants(t, "too early", r, "10")
		answer("40")
		r.Due(lead+17*time.Second, time.Minute)
		time.Sleep(18 * time.Second)
		wants(t, "after a restart of the program", r, "2") // 40 in 20 s
		p.set("80/m", "")
		r.Due(lead, time.Minute)
		time.Sleep(2 * time.Second)
		wants(t, "without an answer", r, "127.0.0.1:80/m: nobody listens")
		answer("80")
		r.Due(lead+17*time.Second, time.Minute)
		time.Sleep(18 * time.Second)
		wants(t, "with an answer again", r, "2")
	})
}

// TestLocal reads numbers from real programs that answer well and badly.
func TestLocal(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.RawQuery
		if query != "" && query != "name=a" || !strings.HasPrefix(r.Header.Get("Accept"), "text/plain") {
			w.WriteHeader(http.StatusBadRequest)
		}
		fmt.Fprintln(w, "a 3")
	})
	mux.Handle("/away", http.RedirectHandler("/metrics", http.StatusFound))
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	})
	mux.HandleFunc("/html", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>a 3") })
	large := func(size int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "a 4\n"+strings.Repeat("#", size-5)+"\n")
		}
	}
	mux.HandleFunc("/large", large(maxAnswer))
	mux.HandleFunc("/larger", large(maxAnswer+1))
	server := httptest.NewServer(mux)
	defer server.Close()
	six := httptest.NewUnstartedServer(mux)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 loopback address")
	}
	six.Listener.Close()
	six.Listener = listener
	six.Start()
	defer six.Close()
	closed, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	port := func(addr net.Addr) uint32 { return uint32(addr.(*net.TCPAddr).Port) }
	own, other, none := port(server.Listener.Addr()), port(six.Listener.Addr()), port(closed.Addr())
	var specs []*nstancev1.VmNumber
	var want []string
	for _, test := range []struct {
		port       uint32
		path, want string
	}{
		{own, "/metrics", "3"},
		{own, "/metrics?name=a", "3"},
		{own, "/metrics?name=b", "status 400"},
		{other, "/metrics", "3"},
		{own, "/away", "status 302"},
		{own, "/broken", "status 500"},
		{own, "/html", "a page of HTML instead of a number"},
		{own, "/large", "4"},
		{own, "/larger", "an answer of more than 1024 KiB"},
		{none, "/metrics", "connection refused"},
		{70000, "/metrics", "dial tcp: address 70000: invalid port"},
	} {
		specs = append(specs, &nstancev1.VmNumber{Id: uint64(len(specs)), Port: test.port, Path: test.path,
			In: &nstancev1.VmNumber_Metric{Metric: "a"}})
		if test.want != "3" && test.want != "4" {
			test.want = fmt.Sprintf("127.0.0.1:%d%s: %s", test.port, test.path, test.want)
		}
		want = append(want, test.want)
	}
	read := make(chan struct{}, 1)
	r := New(Local, func() { read <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	r.Set(specs)
	<-read
	wants(t, "from programs", r, want...)
	cancel()
	<-done
}
