package bench

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

const mib = 1 << 20

// BenchmarkMemory measures the resident memory of a server process. Each agent has two streams and reports once per
// minute. "storm-MiB" is the maximum since the start, which includes the time when all agents connect. "MiB" is the
// maximum in the second minute after all agents have connected. The benchmark does not force the process to return
// unused memory to the kernel. With BENCH_PROFILE=DIR it writes heap and goroutine profiles to DIR.
func BenchmarkMemory(b *testing.B) {
	for _, agents := range []int{2000, 8000} {
		b.Run(fmt.Sprintf("agents=%d", agents), func(b *testing.B) {
			s := newAlone(b, agents, 0, true)
			s.fill(agents / groups)
			<-time.After(time.Minute)
			for b.Loop() {
				var peak, last usage
				for range 12 {
					<-time.After(5 * time.Second)
					if last = s.daemon.ask(b, question{}); last.Resident > peak.Resident {
						peak = last
					}
				}
				each := func(bytes uint64) float64 { return float64(bytes) / float64(agents) / 1024 }
				b.ReportMetric(float64(last.Peak)/mib, "storm-MiB")
				b.ReportMetric(float64(peak.Resident)/mib, "MiB")
				b.ReportMetric(each(uint64(peak.Resident)), "KiB/agent")
				b.ReportMetric(each(uint64(peak.Anonymous)), "anonymous-KiB/agent")
				b.ReportMetric(each(peak.Heap), "heap-KiB/agent")
				b.ReportMetric(each(peak.Stacks), "stacks-KiB/agent")
				b.ReportMetric(float64(peak.Goroutines)/float64(agents), "goroutines/agent")
				least := s.daemon.ask(b, question{Free: true, Profile: profiles(fmt.Sprintf("memory-%d", agents))})
				b.ReportMetric(each(least.Live), "live-KiB/agent")
				b.ReportMetric(each(least.Heap), "least-heap-KiB/agent")
				b.ReportMetric(float64(least.Resident)/mib, "least-MiB")
				b.ReportMetric(float64(peak.Idle)/mib, "idle-MiB")
				b.ReportMetric(float64(peak.Other)/mib, "runtime-MiB")
				b.ReportMetric(float64(peak.GCs), "collections")
				b.ReportMetric(float64(peak.Resident-peak.Anonymous)/mib, "file-MiB")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// BenchmarkReports measures the server's CPU time for 10,000 unchanged reports from the streams of 4,000 agents. The
// reports must cause no writes to the server's disk or the bucket. The variants are:
//
//   - "paced": single reports, 1,000 per second, as from 60,000 agents.
//   - "dense": all agents report twice per second.
//   - "silent": no agent reports. The result is the CPU time for all other work, which "paced" and "dense" include.
//     Most of it is for answers to pings. Each agent sends a ping every 20 s to check the server.
func BenchmarkReports(b *testing.B) {
	const agents = 4000
	for name, tc := range map[string]struct {
		interval, again time.Duration
	}{"paced": {interval: 4 * time.Second}, "dense": {interval: time.Minute, again: time.Second / 2},
		"silent": {interval: 10 * time.Minute}} {
		b.Run(name, func(b *testing.B) {
			s := &stack{b: b, boot: true, alone: true, interval: tc.interval}
			s.open(agents, 0)
			s.fill(agents / groups)
			<-time.After(30 * time.Second) // wait for the complete reports that follow the files
			for b.Loop() {
				s.measureReports(b, name, tc.again)
			}
		})
	}
}

func (s *stack) measureReports(b *testing.B, name string, again time.Duration) {
	const span = 20 * time.Second
	if again > 0 {
		s.fleet.orders <- order{Op: "report", Every: again, Times: int(span / again)}
	}
	before, reports, plans, requests := s.daemon.ask(b, question{CPU: profiles(name + ".cpu")}), s.metric(b, received),
		s.metric(b, planned), s.counted.Counts()
	<-time.After(span)
	after, count, spent := s.daemon.ask(b, question{}), s.metric(b, received)-reports, s.counted.Counts().Sub(requests)
	b.ReportMetric((after.CPU - before.CPU).Seconds(), "cpu-s")
	b.ReportMetric(count/span.Seconds(), "reports/s")
	b.ReportMetric(float64(after.Allocated-before.Allocated)/mib, "MiB")
	if count > 0 {
		b.ReportMetric((after.CPU-before.CPU).Seconds()*10_000/count, "cpu-s/10k")
		b.ReportMetric((after.System-before.System).Seconds()*10_000/count, "system-cpu-s/10k")
		b.ReportMetric(float64(after.Mallocs-before.Mallocs)/count, "allocs/report")
		b.ReportMetric(float64(after.Allocated-before.Allocated)/count, "B/report")
	}
	b.ReportMetric(float64(after.GCs-before.GCs), "collections")
	b.ReportMetric(s.metric(b, planned)-plans, "plans")
	b.ReportMetric(float64(after.Written-before.Written), "disk-bytes")
	b.ReportMetric(float64(spent.Put), "puts") // renewals of the lock
	b.ReportMetric(0, "ns/op")
}

const received, planned = "nstance_agent_reports_total", "nstance_plan_duration_seconds_count"

// metric returns the value of one of the server's metrics.
func (s *stack) metric(b testing.TB, name string) (value float64) {
	b.Helper()
	response, err := http.Get("http://" + s.ports[0] + "/metrics")
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if series, rest, ok := strings.Cut(lines.Text(), "} "); ok && strings.HasPrefix(series, name+"{") {
			if _, err := fmt.Sscan(rest, &value); err != nil {
				b.Fatal(err)
			}
			return value
		}
	}
	b.Fatalf("the server has no metric %s (%v)", name, lines.Err())
	return 0
}

// TestMetrics checks that a server has the metrics that BenchmarkReports reads.
func TestMetrics(t *testing.T) {
	s := newStack(t, groups, 0, false)
	s.fill(1)
	if plans := s.metric(t, planned); plans == 0 || s.metric(t, received) != 0 {
		t.Errorf("%v plans and %v reports, want some plans and no report", plans, s.metric(t, received))
	}
}

// BenchmarkRegistration registers instances, 64 at a time. The clients run in another process, on the same cores as the
// server. Each client has a new key, connection and handshake. Every request to the bucket takes 20 ms.
func BenchmarkRegistration(b *testing.B) {
	const instances = 4000
	s := newAlone(b, instances, 20*time.Millisecond, false)
	s.fill(instances / groups)
	<-time.After(5 * time.Second) // wait for the records
	r := startRegistrants(b)
	for b.Loop() {
		before, requests := s.daemon.ask(b, question{CPU: profiles("registration.cpu")}), s.counted.Counts()
		did := r.run(b, registrants{CA: s.caBundle(), Addr: s.ports[2], Nonces: s.nonces, Workers: 64})
		after, spent := s.daemon.ask(b, question{}), s.counted.Counts().Sub(requests)
		b.ReportMetric(instances/did.Took.Seconds(), "registrations/s")
		b.ReportMetric((after.CPU-before.CPU).Seconds()*1000/instances, "server-cpu-ms")
		b.ReportMetric(did.CPU.Seconds()*1000/instances, "client-cpu-ms")
		b.ReportMetric(float64(spent.Put)/instances, "puts")
		b.ReportMetric(0, "ns/op")
	}
}

// registrantsEnv is the environment variable that makes this program run the clients that register.
const registrantsEnv = "NSTANCE_BENCH_REGISTRANTS"

// registrants is the input of the process that runs the clients that register. registered is the output of that
// process.
type registrants struct {
	CA, Addr string
	Nonces   []string
	Workers  int
}

type registered struct {
	Took, CPU time.Duration
	Failed    string
}

func runRegistrants(in io.Reader, out io.Writer) error {
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var request registrants
		if err := decoder.Decode(&request); err != nil {
			return nil //nolint:nilerr // the end
		}
		did, err := request.register()
		if err != nil {
			did.Failed = err.Error()
		}
		if err := encoder.Encode(did); err != nil {
			return err
		}
	}
}

func (r *registrants) register() (did registered, err error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(r.CA))
	before, err := measure()
	if err != nil {
		return did, err
	}
	began := time.Now()
	nonces, errs := make(chan string), make(chan error, len(r.Nonces))
	var all sync.WaitGroup
	for range r.Workers {
		all.Go(func() {
			for nonce := range nonces {
				if err := registerOne(roots, r.Addr, nonce); err != nil {
					errs <- err
				}
			}
		})
	}
	for _, nonce := range r.Nonces {
		nonces <- nonce
	}
	close(nonces)
	all.Wait()
	did.Took = time.Since(began)
	select {
	case err := <-errs:
		return did, fmt.Errorf("%d of %d failed, one with: %w", len(errs)+1, len(r.Nonces), err)
	default:
	}
	after, err := measure()
	did.CPU = after.CPU - before.CPU
	return did, err
}

// registerOne registers one instance as an agent does: with a new key and one call on a new connection.
func registerOne(roots *x509.CertPool, addr, nonce string) error {
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13})))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	resp, err := nstancev1.NewRegistrationServiceClient(conn).RegisterAgent(ctx,
		&nstancev1.RegisterAgentRequest{Nonce: nonce, PublicKey: public, Ipv4: "10.0.0.1"})
	if err == nil && len(resp.GetCertificate()) == 0 {
		err = errors.New("no certificate")
	}
	return err
}

// registrantsProcess is the benchmark's connection to the process that runs the clients that register.
type registrantsProcess struct {
	encoder *json.Encoder
	decoder *json.Decoder
}

func startRegistrants(b testing.TB) *registrantsProcess {
	b.Helper()
	in, out, wait := startSelf(b, registrantsEnv)
	b.Cleanup(func() {
		_ = in.Close()
		if err := wait(); err != nil {
			b.Errorf("registrants: %v", err)
		}
	})
	return &registrantsProcess{json.NewEncoder(in), json.NewDecoder(out)}
}

func (r *registrantsProcess) run(b testing.TB, request registrants) (did registered) {
	b.Helper()
	if err := r.encoder.Encode(request); err != nil {
		b.Fatal(err)
	}
	if err := r.decoder.Decode(&did); err != nil {
		b.Fatal(err)
	}
	if did.Failed != "" {
		b.Fatal(did.Failed)
	}
	return did
}
