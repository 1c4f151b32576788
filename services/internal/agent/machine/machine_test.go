package machine_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/agent/machine"
)

const (
	unspecified = nstancev1.StoppingReason_STOPPING_REASON_UNSPECIFIED
	powerOff    = nstancev1.StoppingReason_STOPPING_REASON_POWER_OFF
	reboot      = nstancev1.StoppingReason_STOPPING_REASON_REBOOT
	restart     = nstancev1.StoppingReason_STOPPING_REASON_RESTART
	upgrade     = nstancev1.StoppingReason_STOPPING_REASON_UPGRADE
)

var discard = slog.New(slog.DiscardHandler)

func TestStoppingReason(t *testing.T) {
	const jobs = "1423 systemd-poweroff.service start waiting\n1422 XX.target start waiting\n1421 shutdown.target " +
		"start waiting\n99 nstance-agent.service stop running\n"
	for name, test := range map[string]struct {
		state, jobs, scheduled, executable string
		want                               nstancev1.StoppingReason
	}{
		"service restart": {"running\n", "", "", "/usr/bin/nstance-agent", restart},
		"degraded system": {"degraded\n", "", "", "", restart},
		"no systemd":      {"", "", "", "/usr/bin/nstance-agent", restart},
		"replaced binary": {"running\n", "", "", "/usr/bin/nstance-agent (deleted)", upgrade},
		"power-off":       {"stopping\n", strings.ReplaceAll(jobs, "XX", "poweroff"), "", "", powerOff},
		"halt":            {"stopping\n", strings.ReplaceAll(jobs, "XX", "halt"), "", "", powerOff},
		"reboot":          {"stopping\n", strings.ReplaceAll(jobs, "XX", "reboot"), "", "", reboot},
		"kexec":           {"stopping\n", strings.ReplaceAll(jobs, "XX", "kexec"), "", "", reboot},
		"power-off after upgrade": {"stopping\n", strings.ReplaceAll(jobs, "XX", "poweroff"), "", "/x (deleted)",
			powerOff},
		"stop of a target": {"stopping\n", "7 poweroff.target stop waiting\n8 reboot.target start waiting\n",
			"", "", reboot},
		"scheduled power-off":       {"stopping\n", "", "USEC=1\nWARN_WALL=1\nMODE=poweroff\n", "", powerOff},
		"scheduled reboot":          {"stopping\n", "garbage\n", "MODE=reboot\n", "", reboot},
		"down for unknown reasons":  {"stopping\n", "", "", "", reboot},
		"scheduled in unknown ways": {"stopping\n", "", "MODE=nap\n", "", reboot},
	} {
		files := fstest.MapFS{}
		if test.scheduled != "" {
			files["run/systemd/shutdown/scheduled"] = &fstest.MapFile{Data: []byte(test.scheduled)}
		}
		system := machine.System{
			Command: func(_ context.Context, name string, args ...string) string {
				switch line := name + " " + strings.Join(args, " "); {
				case line == "systemctl is-system-running":
					return test.state
				case strings.HasPrefix(line, "systemctl list-jobs "):
					return test.jobs
				default:
					t.Errorf("ran %s", line)
					return ""
				}
			},
			Files:      files,
			Executable: func() string { return test.executable },
		}
		if got := system.StoppingReason(t.Context()); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// TestReasonOnThisMachine checks StoppingReason on this machine, which is not shutting down while its tests run.
func TestReasonOnThisMachine(t *testing.T) {
	if got := machine.ThisSystem().StoppingReason(t.Context()); got != restart && got != upgrade {
		t.Errorf("StoppingReason = %v", got)
	}
}

func TestHost(t *testing.T) {
	listener, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	h := machine.NewHost(machine.HostOptions{Server: listener.LocalAddr().String(), Interface: "lo", Log: discard})
	if _, uptime := h.Sample(t.Context()); uptime <= 0 {
		t.Errorf("uptime %v", uptime)
	}
	sender, err := net.Dial("udp4", listener.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	if _, err := sender.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	metrics, _ := h.Sample(t.Context())
	if metrics.GetCpu() < 0 || metrics.GetCpu() > 1 || metrics.GetMemoryUsedBytes() == 0 ||
		metrics.GetMemoryUsedBytes() >= metrics.GetMemoryTotalBytes() {
		t.Errorf("metrics %v", metrics)
	}
	if metrics.GetNetworkReceiveRate() <= 0 || metrics.GetNetworkTransmitRate() <= 0 {
		t.Errorf("a packet went over lo: %v", metrics)
	}
	if h.Name() == "" || h.FQDN(t.Context()) == "" {
		t.Error("the machine has no name")
	}
	ipv4, ipv6 := h.Addresses()
	for _, addr := range []string{ipv4, ipv6} {
		if ip := net.ParseIP(addr); addr != "" && (ip == nil || ip.IsLoopback() ||
			(ip.To4() != nil) != (addr == ipv4)) {
			t.Errorf("addresses %q, %q", ipv4, ipv6)
		}
	}
}

func TestHostUsesConfiguredAddresses(t *testing.T) {
	h := machine.NewHost(machine.HostOptions{Hostname: "node", IPv4: "10.0.0.1", IPv6: "2001:db8::1",
		Interface: "no such interface", Log: discard})
	ipv4, ipv6 := h.Addresses()
	if diff := cmp.Diff([]string{"node", "10.0.0.1", "2001:db8::1"}, []string{h.Name(), ipv4, ipv6}); diff != "" {
		t.Error(diff)
	}
	for range 2 {
		if metrics, _ := h.Sample(t.Context()); metrics.NetworkReceiveRate != nil ||
			metrics.NetworkTransmitRate != nil {
			t.Errorf("rates of no interface: %v", metrics)
		}
	}
}

// scriptedLogind returns scripted signals in order. It records when the agent takes and releases its lock.
type scriptedLogind struct {
	lines []machine.Shutdown
	held  int
	log   []string
}

var errEnd = errors.New("the script ends")

func (l *scriptedLogind) Inhibit(context.Context) (io.Closer, error) {
	l.held++
	l.log = append(l.log, "lock")
	return l, nil
}

func (l *scriptedLogind) Close() error {
	l.held--
	l.log = append(l.log, "release")
	return nil
}

func (l *scriptedLogind) Next(context.Context) (machine.Shutdown, error) {
	if len(l.lines) == 0 {
		return machine.Shutdown{}, errEnd
	}
	line := l.lines[0]
	l.lines = l.lines[1:]
	return line, nil
}

// TestWatchShutdown checks that logind's inhibitor lock is released after the announcement, and taken again after a
// canceled shutdown.
func TestWatchShutdown(t *testing.T) {
	off := machine.Shutdown{}
	for name, test := range map[string]struct {
		lines []machine.Shutdown
		want  []string
	}{
		"nothing": {nil, []string{"lock", "release"}},
		"power-off": {[]machine.Shutdown{{Active: true, Action: "poweroff"}},
			[]string{"lock", "POWER_OFF", "release"}},
		"both signals": {[]machine.Shutdown{{Active: true, Action: "reboot"}, {Active: true}},
			[]string{"lock", "REBOOT", "release"}},
		"soft reboot": {[]machine.Shutdown{{Active: true, Action: "soft-reboot"}},
			[]string{"lock", "REBOOT", "release"}},
		"unknown kind": {[]machine.Shutdown{{Active: true}}, []string{"lock", "release"}},
		"unknown, called off": {[]machine.Shutdown{{Active: true}, off},
			[]string{"lock", "release", "lock", "release"}},
		"unknown, then known": {[]machine.Shutdown{{Active: true}, {Active: true, Action: "halt"}},
			[]string{"lock", "release", "POWER_OFF"}},
		"called off": {[]machine.Shutdown{{Active: true, Action: "poweroff"}, off, off},
			[]string{"lock", "POWER_OFF", "release", "lock", "UNSPECIFIED", "release"}},
		"called off and again": {[]machine.Shutdown{{Active: true, Action: "reboot"}, off,
			{Active: true, Action: "poweroff"}}, []string{"lock", "REBOOT", "release", "lock", "UNSPECIFIED",
			"POWER_OFF", "release"}},
	} {
		logind := &scriptedLogind{lines: test.lines}
		announce := func(ctx context.Context, reason nstancev1.StoppingReason) error {
			if _, ok := ctx.Deadline(); !ok {
				t.Errorf("%s: an announcement without a deadline", name)
			}
			logind.log = append(logind.log, strings.TrimPrefix(reason.String(), "STOPPING_REASON_"))
			return errors.New("not confirmed") // this must not delay the shutdown
		}
		if err := machine.WatchShutdown(t.Context(), logind, announce, discard); !errors.Is(err, errEnd) {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(test.want, logind.log); diff != "" || logind.held != 0 {
			t.Errorf("%s: %d locks held: %s", name, logind.held, diff)
		}
	}
}
