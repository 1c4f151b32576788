package agent_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/internal/agent"
)

// asAgent is the environment variable that makes the test binary run as an agent.
const asAgent = "TEST_RUN_AS_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) == "" {
		os.Exit(m.Run())
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	settings, _, err := agent.ParseSettings(os.Environ())
	if err == nil {
		err = agent.Run(context.Background(), settings, "process", log)
	}
	if err != nil {
		log.Error("The agent cannot run", "error", err)
		os.Exit(1)
	}
}

// process is an agent in a separate process. The agent uses a real disk, and its server has a real port.
type process struct {
	cmd   *exec.Cmd
	lines chan string
	done  chan error
}

// machineOf returns a directory that simulates the disk of a new VM.
func machineOf(t *testing.T, s *fakeServer) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "identity"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"ca.crt": authority.EncodeBundle(s.ca.Certificate()),
		"nonce.jwt": []byte("good.nonce.jwt")} {
		if err := os.WriteFile(filepath.Join(dir, "identity", name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func launch(t *testing.T, s *fakeServer, addr, dir string, environ ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(self), lines: make(chan string, 1000), done: make(chan error, 1)}
	p.cmd.Env = append([]string{
		asAgent + "=1", "PATH=" + os.Getenv("PATH"),
		"NSTANCE_SERVER_REGISTRATION_ADDR=" + addr, "NSTANCE_SERVER_AGENT_ADDR=" + addr, "NSTANCE_INSTANCE_ID=" +
			s.id.String(),
		"NSTANCE_IDENTITY_DIR=" + filepath.Join(dir, "identity"), "NSTANCE_KEYS_DIR=" + filepath.Join(dir, "keys"),
		"NSTANCE_RECV_DIR=" + filepath.Join(dir, "recv"),
		"NSTANCE_HEALTH_ADDR=127.0.0.1:0",
	}, environ...)
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for scanner := bufio.NewScanner(stderr); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
		close(p.lines)
		p.done <- p.cmd.Wait()
	}()
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

// say waits for a log line that matches the pattern. It returns the text that the first group of the pattern matched.
func (p *process) say(t *testing.T, pattern string) string {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				t.Fatalf("the agent ended before it printed %s", pattern)
			}
			if found := regexp.MustCompile(pattern).FindStringSubmatch(line); found != nil {
				return found[1]
			}
		case <-timeout:
			t.Fatalf("the agent does not say %s", pattern)
		}
	}
}

func (p *process) end(t *testing.T, sig syscall.Signal) error {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.done:
		return err
	case <-time.After(time.Minute):
		t.Fatalf("the agent does not end at %v", sig)
		return nil
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func healthz(t *testing.T, addr string) string {
	t.Helper()
	answer, err := http.Get("http://" + addr + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s", answer.StatusCode, strings.TrimSpace(string(body)))
}

// TestProcess checks that the announced reason depends on the signal that ends the agent, and that the announcement
// arrives before the agent exits.
func TestProcess(t *testing.T) {
	s := newFakeServer(t, newID(t))
	s.interval = "1h"
	listener := listen(t)
	defer s.start(t, listener)()
	addr, dir := listener.Addr().String(), machineOf(t, s)

	p := launch(t, s, addr, dir, "NSTANCE_HOOK=cp $NSTANCE_RECV_DIR/$NSTANCE_CHANGED_FILES $NSTANCE_RECV_DIR/../hooked")
	health := p.say(t, `Answering health checks.* address=(\S+)`)
	report := s.next(t, "sequence 1", first)
	if report.GetMetrics().GetMemoryTotalBytes() == 0 || report.GetUptime().AsDuration() <= 0 ||
		report.GetHostname() == "" || report.GetAgentVersion() != "process" {
		t.Errorf("%v", report)
	}
	p.say(t, `(Connected)`)
	if got := healthz(t, health); got != "200 ok" {
		t.Errorf("healthz: %s", got)
	}
	checkMetrics(t, health)
	for name, want := range map[string]os.FileMode{"identity/identity.key": 0o600, "identity/identity.crt": 0o600,
		"keys": os.ModeDir | 0o750, "recv": os.ModeDir | 0o750} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	s.sendFiles("hash", map[string]string{"a.env": "A=1"})
	p.say(t, `(The hook ran)`)
	if got, err := os.ReadFile(filepath.Join(dir, "hooked")); err != nil || string(got) != "A=1" {
		t.Errorf("hooked: %q, %v", got, err)
	}

	// A killed agent announces nothing. After a restart it has the same identity and files.
	if err := p.end(t, syscall.SIGKILL); err == nil {
		t.Error("killed, and it ended well")
	}
	p = launch(t, s, addr, dir)
	p.say(t, `(Connected)`)
	report = s.next(t, "sequence 1", first)
	if report.GetRuntimeHash() != "hash" || len(report.GetFiles()) != 1 || report.GetStopping() != unspecified {
		t.Errorf("%v", report)
	}
	if got := get(s, func() int { return len(s.registrations) }); got != 1 {
		t.Errorf("%d registrations", got)
	}

	// On SIGTERM the agent announces that it restarts, because the machine keeps running.
	if err := p.end(t, syscall.SIGTERM); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	s.next(t, "restart", func(r *nstancev1.ReportHealthRequest) bool {
		return r.GetStopping() == nstancev1.StoppingReason_STOPPING_REASON_RESTART
	})

	// With NSTANCE_POWER_OFF_ON_SIGTERM, SIGTERM and SIGHUP announce a power-off, but SIGINT still announces a restart.
	for sig, want := range map[syscall.Signal]nstancev1.StoppingReason{
		syscall.SIGTERM: powerOff, syscall.SIGHUP: powerOff,
		syscall.SIGINT: nstancev1.StoppingReason_STOPPING_REASON_RESTART,
	} {
		p = launch(t, s, addr, dir, "NSTANCE_POWER_OFF_ON_SIGTERM=true")
		p.say(t, `(Connected)`)
		if err := p.end(t, sig); err != nil {
			t.Errorf("%v: %v", sig, err)
		}
		s.next(t, sig.String(), func(r *nstancev1.ReportHealthRequest) bool { return r.GetStopping() == want })
	}
}

// TestProcessOfASpareWakes suspends the agent of a spare. Meanwhile, the server gives up its connection and makes the
// spare a member. The woken agent notices immediately that its connection is gone, and takes the new role.
func TestProcessOfASpareWakes(t *testing.T) {
	s := newFakeServer(t, newID(t))
	s.interval = "1h"
	s.firstFiles = []*nstancev1.ReceiveFilesResponse{roleEvent(spare)}
	listener := listen(t)
	stop := s.start(t, listener)
	addr, dir := listener.Addr().String(), machineOf(t, s)
	p := launch(t, s, addr, dir, "NSTANCE_HOOK=cat $NSTANCE_RECV_DIR/role >> $NSTANCE_RECV_DIR/../roles")
	s.next(t, "a spare", hasRole(spare))
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stop()
	s.set(func() { s.firstFiles = []*nstancev1.ReceiveFilesResponse{roleEvent(member)} })
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer s.start(t, listener)()
	woken := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.next(t, "a member", hasRole(member))
	t.Logf("the server knows %s after the agent woke", time.Since(woken))
	if took := time.Since(woken); took > 8*time.Second {
		t.Errorf("the role is taken after %s", took)
	}
	if roles, err := os.ReadFile(filepath.Join(dir, "roles")); err != nil || string(roles) != "spare\nmember\n" {
		t.Errorf("the hook ran for the roles %q, %v", roles, err)
	}
}

// Without a server the agent reports that it is unhealthy, keeps running, and ends in bounded time after a signal.
func TestProcessWithoutServer(t *testing.T) {
	s := newFakeServer(t, newID(t))
	listener := listen(t)
	addr := listener.Addr().String()
	listener.Close()
	p := launch(t, s, addr, machineOf(t, s))
	health := p.say(t, `Answering health checks.* address=(\S+)`)
	p.say(t, `(Not registered yet)`)
	if got := healthz(t, health); !strings.HasPrefix(got, "503 not registered: ") {
		t.Errorf("healthz: %s", got)
	}
	if err := p.end(t, syscall.SIGTERM); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

func TestProcessThatCannotStart(t *testing.T) {
	s := newFakeServer(t, newID(t))
	taken := listen(t)
	defer taken.Close()
	for name, environ := range map[string]string{"port": "NSTANCE_HEALTH_ADDR=" + taken.Addr().String(),
		"directory": "NSTANCE_RECV_DIR=/dev/null/recv"} {
		p := launch(t, s, "127.0.0.1:1", machineOf(t, s), environ)
		p.say(t, `(The agent cannot run)`)
		if err := <-p.done; err == nil {
			t.Errorf("%s: it ended well", name)
		}
	}
}
