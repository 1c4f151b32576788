// Package machine reads the addresses, names and metrics of the agent's machine. It also finds out whether and why the
// machine is about to stop.
//
// Invariant: no error in this package stops the agent. Values that cannot be read are left out.
package machine

import (
	"context"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/mem"
	psnet "github.com/shirou/gopsutil/v4/net"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// lookup is the timeout of operations that may wait for a name server.
const lookup = 500 * time.Millisecond

// Host is the machine that the process runs on. Its methods must not be called concurrently.
type Host struct {
	HostOptions
	last     psnet.IOCountersStat
	lastTime time.Time
	silenced map[string]bool
}

// HostOptions configures [NewHost]. All fields but Log are optional.
type HostOptions struct {
	// Hostname, IPv4 and IPv6 replace the detected values.
	Hostname, IPv4, IPv6 string
	// Server is the host:port of a server. Host detects the addresses from which this machine reaches that server.
	Server string
	// Interface is the network interface whose transfer rates are reported. If Interface is set, the agent also reports
	// how full the kernel's table of tracked connections is.
	Interface string
	Log       *slog.Logger
}

// NewHost returns the machine that the process runs on.
func NewHost(o HostOptions) *Host { return &Host{HostOptions: o, silenced: map[string]bool{}} }

// Name returns the host name.
func (h *Host) Name() string {
	if h.Hostname != "" {
		return h.Hostname
	}
	name, err := os.Hostname()
	h.missing("host name", err)
	return name
}

// Addresses returns the machine's IPv4 and IPv6 addresses. An address is empty if there is none.
func (h *Host) Addresses() (ipv4, ipv6 string) {
	ipv4, ipv6 = h.IPv4, h.IPv6
	if ipv4 == "" {
		ipv4 = h.address("udp4")
	}
	if ipv6 == "" {
		ipv6 = h.address("udp6")
	}
	return ipv4, ipv6
}

// address returns the address from which this machine reaches the server. If that address is not public, it returns the
// first public address of this machine. Public means neither loopback nor link-local. Dial sends nothing here, because
// the socket is a datagram socket.
func (h *Host) address(network string) string {
	dialer := net.Dialer{Timeout: lookup}
	if conn, err := dialer.Dial(network, h.Server); err == nil {
		defer conn.Close()
		if local, ok := conn.LocalAddr().(*net.UDPAddr); ok && public(local.IP) {
			return local.IP.String()
		}
	}
	addrs, err := net.InterfaceAddrs()
	h.missing("addresses", err)
	for _, addr := range addrs {
		if ipnet, ok := addr.(*net.IPNet); ok && public(ipnet.IP) && (ipnet.IP.To4() != nil) == (network == "udp4") {
			return ipnet.IP.String()
		}
	}
	return ""
}

func public(ip net.IP) bool {
	return ip.IsGlobalUnicast() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast()
}

// FQDN returns the machine's full domain name if its name server knows it. Otherwise it returns the machine's host
// name.
func (h *Host) FQDN(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, lookup)
	defer cancel()
	name := h.Name()
	if full, err := net.DefaultResolver.LookupCNAME(ctx, name); err == nil && strings.HasPrefix(full, name+".") {
		return strings.TrimSuffix(full, ".")
	}
	return name
}

// Sample returns metrics of this machine. Rates and CPU use are averages since the last call of Sample. It also returns
// the uptime of the machine.
func (h *Host) Sample(ctx context.Context) (*nstancev1.Metrics, time.Duration) {
	metrics := &nstancev1.Metrics{}
	percent, err := cpu.PercentWithContext(ctx, 0, false) // since the last call
	h.missing("cpu", err)
	if len(percent) == 1 {
		metrics.Cpu = min(max(percent[0]/100, 0), 1)
	}
	memory, err := mem.VirtualMemoryWithContext(ctx)
	h.missing("memory", err)
	if err == nil {
		metrics.MemoryUsedBytes, metrics.MemoryTotalBytes = memory.Used, memory.Total
	}
	if h.Interface != "" {
		h.network(ctx, metrics)
	}
	uptime, err := host.UptimeWithContext(ctx)
	h.missing("uptime", err)
	return metrics, time.Duration(uptime) * time.Second
}

func (h *Host) network(ctx context.Context, metrics *nstancev1.Metrics) {
	counters, err := psnet.IOCountersWithContext(ctx, true)
	h.missing("network", err)
	for _, now := range counters {
		if now.Name != h.Interface {
			continue
		}
		at := time.Now()
		if seconds := at.Sub(h.lastTime).Seconds(); !h.lastTime.IsZero() && seconds > 0 {
			metrics.NetworkReceiveRate = rate(h.last.BytesRecv, now.BytesRecv, seconds)
			metrics.NetworkTransmitRate = rate(h.last.BytesSent, now.BytesSent, seconds)
		}
		h.last, h.lastTime = now, at
	}
	filters, err := psnet.FilterCountersWithContext(ctx)
	h.missing("conntrack", err)
	if err == nil && len(filters) == 1 && filters[0].ConnTrackMax > 0 {
		entries, limit := uint64(max(filters[0].ConnTrackCount, 0)), uint64(filters[0].ConnTrackMax)
		metrics.ConntrackEntries, metrics.ConntrackLimit = &entries, &limit
	}
}

// rate returns the rate per second of a counter. It returns nil if the counter went back, which happens when the
// interface was replaced.
func rate(before, now uint64, seconds float64) *float64 {
	if now < before {
		return nil
	}
	r := float64(now-before) / seconds
	return &r
}

// missing writes a log line if a value cannot be read, but only once for each value.
func (h *Host) missing(what string, err error) {
	if err != nil && !h.silenced[what] {
		h.silenced[what] = true
		h.Log.Debug("The machine does not tell everything about itself", "what", what, "error", err)
	}
}

const (
	powerOff    = nstancev1.StoppingReason_STOPPING_REASON_POWER_OFF
	reboot      = nstancev1.StoppingReason_STOPPING_REASON_REBOOT
	restart     = nstancev1.StoppingReason_STOPPING_REASON_RESTART
	upgrade     = nstancev1.StoppingReason_STOPPING_REASON_UPGRADE
	unspecified = nstancev1.StoppingReason_STOPPING_REASON_UNSPECIFIED
)

// reasonOf translates systemd's names for kinds of shutdown. It returns unspecified for unknown names.
func reasonOf(action string) nstancev1.StoppingReason {
	switch action {
	case "poweroff", "halt":
		return powerOff
	case "reboot", "kexec", "soft-reboot":
		return reboot
	}
	return unspecified
}

// System gives a process that is being stopped access to the service manager and the machine.
type System struct {
	// Command runs a command and returns its standard output, even if the command fails.
	Command func(ctx context.Context, name string, args ...string) string
	// Files is the root of the file system.
	Files fs.FS
	// Executable returns the target of /proc/self/exe, or "".
	Executable func() string
}

// ThisSystem returns the service manager of this machine.
func ThisSystem() System {
	return System{
		Command: func(ctx context.Context, name string, args ...string) string {
			out, _ := exec.CommandContext(ctx, name, args...).Output() // the exit code adds nothing to the output
			return string(out)
		},
		Files: os.DirFS("/"),
		Executable: func() string {
			path, err := os.Readlink("/proc/self/exe")
			if err != nil {
				return "" // not Linux
			}
			return path
		},
	}
}

// StoppingReason returns the reason why the process was sent SIGTERM. If the machine shuts down for an unknown reason,
// the result is a reboot. If that is wrong, the server only loses a moment, in which it asks the provider. After a
// wrong "power-off", the server would give up a VM that still exists.
func (s System) StoppingReason(ctx context.Context) nstancev1.StoppingReason {
	// According to systemctl(1), is-system-running prints "stopping" while systemd shuts down the machine.
	if strings.TrimSpace(s.Command(ctx, "systemctl", "is-system-running")) != "stopping" {
		// If a running program's file was replaced or removed, Linux appends " (deleted)" to its path.
		if strings.HasSuffix(s.Executable(), " (deleted)") {
			return upgrade
		}
		return restart
	}
	for line := range strings.Lines(s.Command(ctx, "systemctl", "list-jobs", "--no-legend", "--no-pager", "--plain",
		"--full")) {
		// The columns are JOB UNIT TYPE STATE.
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[2] != "start" {
			continue
		}
		if target, ok := strings.CutSuffix(fields[1], ".target"); ok && reasonOf(target) != unspecified {
			return reasonOf(target)
		}
	}
	// logind writes this file for scheduled shutdowns such as `shutdown +5`.
	scheduled, err := fs.ReadFile(s.Files, "run/systemd/shutdown/scheduled")
	if err != nil {
		return reboot
	}
	for line := range strings.Lines(string(scheduled)) {
		if mode, ok := strings.CutPrefix(strings.TrimSpace(line), "MODE="); ok && reasonOf(mode) != unspecified {
			return reasonOf(mode)
		}
	}
	return reboot
}
