package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/trace"
	"sync"
	"time"
)

// recorder keeps this process's execution trace of the last seconds, if BENCH_TRACE names a directory. A nil recorder
// does nothing.
type recorder struct {
	flight *trace.FlightRecorder
	dir    string

	mu sync.Mutex // held while a trace is written
	n  int
}

const (
	// If the time from a loss to the create call exceeds slowLoss, the benchmark writes traces. It writes traces of at
	// most slowLosses losses, because each trace takes some MiB.
	slowLoss   = 10 * time.Millisecond
	slowLosses = 8
)

func startRecorder() *recorder {
	dir := os.Getenv("BENCH_TRACE")
	if dir == "" {
		return nil
	}
	r := &recorder{dir: dir, flight: trace.NewFlightRecorder(trace.FlightRecorderConfig{MinAge: time.Second,
		MaxBytes: 256 << 20})}
	if err := r.flight.Start(); err != nil {
		panic(err)
	}
	return r
}

// slow writes the traces of the agents' process and of this process if the loss took longer than slowLoss. Read them
// with "go tool trace".
func (r *recorder) slow(f *fleet, at sending, entered time.Time) {
	if r == nil || entered.Sub(at.began) < slowLoss {
		return
	}
	if !r.mu.TryLock() {
		return // the trace being written covers this loss
	}
	defer r.mu.Unlock()
	r.n++
	fmt.Fprintf(os.Stderr, "loss %d: began %s, wrote after %s, entered after %s\n", r.n,
		at.began.Format("15:04:05.000000"), at.wrote.Sub(at.began), entered.Sub(at.began))
	if r.n <= slowLosses {
		f.orders <- order{Op: "trace", ID: filepath.Join(r.dir, fmt.Sprintf("agents-%d.trace", r.n))}
		r.write(filepath.Join(r.dir, fmt.Sprintf("server-%d.trace", r.n)))
	}
}

func (r *recorder) write(name string) {
	if r == nil {
		return
	}
	file, err := os.Create(name)
	if err == nil {
		_, err = r.flight.WriteTo(file)
		_ = file.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "trace:", err)
	}
}

func (r *recorder) stop() {
	if r != nil {
		r.flight.Stop()
	}
}
