package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// serverEnv is the environment variable that makes this program run as the server's process.
const serverEnv = "NSTANCE_BENCH_SERVER"

// post configures the server's process.
type post struct {
	Dir, Health string
	// Edges is the URL of the bucket and the provider.
	Edges string
}

// question is one line that the benchmark sends to the server's process. The process answers with one line, which
// contains a [usage].
type question struct {
	// Profile, if not empty, is the file name for heap and goroutine profiles, without its extension.
	Profile string
	// CPU, if not empty, is the file for a CPU profile. The next question ends the profile.
	CPU string
	// Free makes the process return unused memory to the kernel before it answers. Without Free, it would return the
	// memory later.
	Free bool
}

// usage is the resource use of the server's process.
type usage struct {
	Resident, Anonymous, Peak int64         // bytes, proc_pid_status(5): VmRSS, RssAnon, VmHWM
	CPU, System               time.Duration // CPU time: total, and in the kernel
	Heap, Stacks, Live, Next  uint64        // bytes: runtime.MemStats HeapInuse, StackInuse, HeapAlloc, NextGC
	// Idle is the unused heap, and Other is the runtime's internal memory, both in bytes.
	Idle, Other        uint64
	Mallocs, Allocated uint64
	GCs                uint32
	GCCPU              float64
	Goroutines         int
	Written            int64 // bytes sent to the storage layer, proc_pid_io(5): write_bytes
}

func measure() (u usage, err error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return u, err
	}
	traffic, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return u, err
	}
	for field, to := range map[string]*int64{"VmRSS:": &u.Resident, "RssAnon:": &u.Anonymous, "VmHWM:": &u.Peak,
		"write_bytes:": &u.Written} {
		for line := range strings.Lines(string(status) + string(traffic)) {
			if rest, ok := strings.CutPrefix(line, field); ok {
				if _, err := fmt.Sscan(rest, to); err != nil {
					return u, fmt.Errorf("%s: %w", field, err)
				}
				if strings.Contains(rest, "kB") {
					*to <<= 10
				}
			}
		}
	}
	var spent syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &spent); err != nil {
		return u, err
	}
	u.System = time.Duration(spent.Stime.Nano())
	u.CPU = time.Duration(spent.Utime.Nano() + spent.Stime.Nano())
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	u.Heap, u.Stacks, u.Live, u.Next, u.GCs, u.GCCPU = stats.HeapInuse, stats.StackInuse, stats.HeapAlloc, stats.NextGC,
		stats.NumGC, stats.GCCPUFraction
	u.Idle, u.Other = stats.HeapIdle-stats.HeapReleased, stats.GCSys+stats.MSpanSys+stats.MCacheSys+stats.BuckHashSys+
		stats.OtherSys
	u.Mallocs, u.Allocated = stats.Mallocs, stats.TotalAlloc
	u.Goroutines = runtime.NumGoroutine()
	return u, nil
}

// runServer runs a server until its input ends.
func runServer(in io.Reader, out io.Writer) error {
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	var at post
	if err := decoder.Decode(&at); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	debug.SetGCPercent(gcPercent)
	go func() {
		stopped <- server.Run(ctx, server.Config{
			Options: server.Options{ID: "bench", Shard: "bench", CacheDir: at.Dir, HealthAddr: at.Health,
				Location: objstore.Location{Provider: "s3", Bucket: bucketName, Endpoint: at.Edges, PathStyle: true}},
			Log: logger(),
			KeySources: []keyring.Source{{Name: config.EnvKeySource,
				Read: func(context.Context, config.KeySource) ([]byte, error) { return []byte(encryptionKey), nil }}},
			Clouds: []infra.Cloud{mock.Cloud(distant{at.Edges, &http.Client{
				Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}, "bench")},
		})
	}()
	go func() {
		defer stop()
		answerQuestions(decoder, encoder)
	}()
	return <-stopped
}

// answerQuestions answers questions about the resource use of this process until its input ends.
func answerQuestions(decoder *json.Decoder, encoder *json.Encoder) {
	for {
		var asked question
		if decoder.Decode(&asked) != nil {
			return
		}
		pprof.StopCPUProfile()
		if asked.Free {
			debug.FreeOSMemory()
		}
		answer, err := measure()
		if err == nil {
			err = asked.profile()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "server's process:", err)
			return
		}
		_ = encoder.Encode(answer)
	}
}

func (q question) profile() error {
	if q.CPU != "" {
		f, err := os.Create(q.CPU)
		if err != nil {
			return err
		}
		return pprof.StartCPUProfile(f)
	}
	if q.Profile == "" {
		return nil
	}
	for _, kind := range []string{"heap", "goroutine", "allocs"} {
		f, err := os.Create(q.Profile + "." + kind)
		if err != nil {
			return err
		}
		if err := errors.Join(pprof.Lookup(kind).WriteTo(f, 0), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// daemon is the benchmark's connection to the server's process.
type daemon struct {
	in      io.WriteCloser
	encoder *json.Encoder
	decoder *json.Decoder
	wait    func() error
	stop    func() // stops the edges
}

// startSelf starts this program as another process. The environment variable `role` selects what that process runs. env
// contains additional variables.
func startSelf(b testing.TB, role string, env ...string) (in io.WriteCloser, out io.Reader, wait func() error) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), role+"=1"), env...)
	cmd.Stderr = os.Stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	return in, out, cmd.Wait
}

// startDaemon starts a server in a separate process.
func startDaemon(b testing.TB, store objstore.Store, provider infra.Provider, health string) *daemon {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	edge := &http.Server{Handler: edges{store, provider}}
	go func() { _ = edge.Serve(listener) }()
	in, out, wait := startSelf(b, serverEnv, "AWS_ACCESS_KEY_ID=bench", "AWS_SECRET_ACCESS_KEY=bench",
		"AWS_REGION=us-east-1",
		"AWS_CONFIG_FILE="+os.DevNull, "AWS_SHARED_CREDENTIALS_FILE="+os.DevNull)
	d := &daemon{in: in, wait: wait, encoder: json.NewEncoder(in), decoder: json.NewDecoder(out), stop: func() {
		_ = edge.Close()
	}}
	if err := d.encoder.Encode(post{Dir: b.TempDir(), Health: health, Edges: "http://" +
		listener.Addr().String()}); err != nil {
		b.Fatal(err)
	}
	return d
}

// shutDown stops the server and waits for its process.
func (d *daemon) shutDown() error {
	defer d.stop()
	_ = d.in.Close()
	return d.wait()
}

// ask sends a question to the server's process and returns the process's present resource use.
func (d *daemon) ask(b testing.TB, q question) (u usage) {
	b.Helper()
	if err := errors.Join(d.encoder.Encode(q), d.decoder.Decode(&u)); err != nil {
		b.Fatalf("server's process: %v", err)
	}
	return u
}

// profiles returns the path of a profile in the directory BENCH_PROFILE, or "" if the variable is not set.
func profiles(name string) string {
	if dir := os.Getenv("BENCH_PROFILE"); dir != "" {
		return filepath.Join(dir, name)
	}
	return ""
}

func logger() *slog.Logger {
	if os.Getenv("BENCH_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}
