package machine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const hardened = `[Unit]
Description=What the tests run
After=network-online.target
Wants=network-online.target
ConditionPathExists=/etc/daemon.env
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
WatchdogSec=3s
Restart=always
RestartSec=100ms
TimeoutStopSec=3s
User=worker
Group=worker
EnvironmentFile=/etc/daemon.env
Environment=A=overridden B=b GORACE=atexit_sleep_ms=0
ExecStart=/usr/local/bin/daemon one $A $NONE two
CacheDirectory=thing
CacheDirectoryMode=0700
UMask=0077
LimitNOFILE=4096
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict

[Install]
WantedBy=multi-user.target
`

// service boots a machine with the given units and the user "worker", whom useradd creates as on Debian.
func (w *testRunner) service(units map[string]string) string {
	w.t.Helper()
	w.with("daemon")
	var script strings.Builder
	script.WriteString("#!/bin/sh\nset -eu\nuseradd --uid 4001 --user-group --create-home worker\n" +
		`printf '%s\n' '# comment' 'A="first  second"' >/etc/daemon.env` + "\n")
	for name, text := range units {
		fmt.Fprintf(&script, "cat >/etc/systemd/system/%s <<'END'\n%sEND\n", name, text)
	}
	script.WriteString("systemctl daemon-reload\n")
	id := w.start("vpc-a", 20, script.String())
	w.eventually(id, booted, "yes")
	return id
}

// property returns one or more properties of a unit. "name" lists their names, as for `systemctl show -p`.
func (w *testRunner) property(id, unit, name string) string {
	w.t.Helper()
	return w.run(id, "systemctl show -p "+name+" --value "+unit)
}

func TestService(t *testing.T) {
	w := newTestRunner(t, nil)
	id := w.service(map[string]string{"daemon.service": hardened})
	if got := w.run(id, "systemctl is-active daemon || systemctl enable daemon"); got != "inactive" {
		t.Errorf("before it was started: %s", got)
	}
	w.run(id, "systemctl start daemon")
	if got := w.property(id, "daemon", "ActiveState,SubState,Result"); got != "active\nrunning\nsuccess" {
		t.Errorf("started, it is %q", got)
	}
	pid := w.property(id, "daemon", "MainPID")
	w.eventually(id, "journalctl -u daemon | grep -c NoNewPrivs", "1") // The last line of the output.
	out := w.run(id, "journalctl -u daemon -o cat") + "\n"
	for _, want := range []string{
		`args ["one" "first" "second" "two"]`, "uid 4001 gid 4001 groups [4001] umask 77", "cwd / pid true", "B=b",
		"CACHE_DIRECTORY=/var/cache/thing", "USER=worker", "HOME=/home/worker", "FLAVOUR=plain vanilla", "files 4096",
		"CapBnd:\t0000000000000000", "NoNewPrivs:\t1",
	} {
		if !strings.Contains(out, want+"\n") {
			t.Errorf("the service did not say %s but\n%s", want, out)
		}
	}
	if got := w.run(id, "stat -c '%U %a' /var/cache/thing"); got != "worker 700" {
		t.Errorf("the cache directory has owner and mode %s", got)
	}

	// Like systemd, init must restart a service that was killed or that has missed its watchdog deadline.
	w.run(id, "systemctl kill -s KILL daemon")
	w.eventually(id, "systemctl show -p NRestarts,ActiveState --value daemon", "active\n1")
	if again := w.property(id, "daemon", "MainPID"); again == pid {
		t.Error("it is the same process")
	}
	w.run(id, "touch /run/stuck")
	w.eventually(id, "journalctl -u daemon | grep -c 'Watchdog timed out'", "1")
	w.run(id, "rm /run/stuck")
	w.eventually(id, "systemctl show -p NRestarts,ActiveState --value daemon", "active\n2")
	w.run(id, "journalctl -u daemon | grep -q 'SIGABRT: abort'") // Go's runtime reports the signal.

	// Without READY=1 a start waits.
	w.run(id, "systemctl stop daemon; touch /run/unready; systemctl start --no-block daemon")
	w.eventually(id, "systemctl is-active daemon", "activating")
	w.run(id, "rm /run/unready; systemctl start daemon; systemctl is-active daemon")

	// The service "daemon" ends with success after SIGTERM. If it ignores SIGTERM, it is killed after the timeout.
	w.run(id, "systemctl stop daemon; journalctl -u daemon | grep -q 'ends well'; test -d /var/cache/thing")
	if got := w.property(id, "daemon", "ActiveState,Result,MainPID"); got != "inactive\nsuccess\n0" {
		t.Errorf("stopped, it is %q", got)
	}
	w.run(id, "touch /run/stubborn; systemctl restart daemon; systemctl stop daemon; rm /run/stubborn")
	if got := w.property(id, "daemon", "ActiveState,Result,MainPID"); got != "failed\ntimeout\n0" {
		t.Errorf("killed, it is %q", got)
	}
	w.fails(id, "systemctl is-active daemon")
	if got := w.run(id, "systemctl is-system-running || true"); got != "degraded" {
		t.Errorf("the system is %q", got)
	}
	w.fails(id, "systemctl start nobody")
	w.run(id, "mv /etc/daemon.env /etc/other.env; systemctl start daemon")
	if got := w.property(id, "daemon", "ActiveState"); got != "inactive" {
		t.Errorf("without the file of its condition, it is %q", got)
	}
	// No process is left.
	if got := w.run(id, "pgrep -c daemon || true"); got != "0" {
		t.Errorf("%s daemons stay", got)
	}
}

func TestServiceKinds(t *testing.T) {
	w := newTestRunner(t, map[string]string{
		"usr/local/bin/family": "#!/bin/sh\nsetsid sleep 1000 &\nsleep 1000 &\nexec sleep 1000\n",
		// leaver starts a process that leaves the service, but keeps the service's output open.
		"usr/local/bin/leaver": "#!/bin/sh\nenv -i setsid sleep 1000 &\nexec sleep 1000\n",
	})
	id := w.service(map[string]string{
		"bad.service":   "[Service]\nType=notify\nExecStart=/usr/local/bin/absent\n",
		"late.service":  "[Service]\nType=notify\nTimeoutStartSec=300ms\nExecStart=/bin/sleep 100\n",
		"ended.service": "[Service]\nType=notify\nExecStart=/bin/true\n",
		"loop.service": "[Unit]\nStartLimitIntervalSec=1h\nStartLimitBurst=3\n" +
			"[Service]\nRestart=always\nRestartSec=10ms\nExecStart=/bin/false\n",
		"family.service":  "[Service]\nExecStart=/usr/local/bin/family\n",
		"leaver.service":  "[Service]\nExecStart=/usr/local/bin/leaver\n",
		"odd.service":     "[Service]\nExecStart=/bin/true\nRootDirectory=/srv\n",
		"dynamic.service": "[Service]\nExecStart=/usr/local/bin/daemon\nDynamicUser=yes\nCacheDirectory=dynamic\n",
	})
	for unit, want := range map[string]string{"bad": "failed\nexit-code", "late": "failed\ntimeout",
		"ended": "failed\nprotocol"} {
		w.fails(id, "systemctl start "+unit)
		if got := w.property(id, unit, "ActiveState,Result"); got != want {
			t.Errorf("%s is %q, not %q", unit, got, want)
		}
	}
	w.run(id, "systemctl start loop")
	w.eventually(id, "systemctl show -p ActiveState,Result,NRestarts --value loop", "failed\nstart-limit-hit\n3")
	w.run(id, "systemctl start family")
	w.eventually(id, "pgrep -c sleep", "3")
	w.run(id, "systemctl stop family; ! pgrep sleep")
	w.run(id, "systemctl start leaver")
	w.eventually(id, "pgrep -c sleep", "2")
	w.run(id, "systemctl stop leaver; pkill sleep")
	if _, err := w.Exec(id, "systemctl", "start", "odd"); err == nil ||
		!strings.Contains(err.Error(), "RootDirectory= is not supported") {
		t.Errorf("an unknown directive is %v", err)
	}
	w.run(id, "systemctl start dynamic")
	w.eventually(id, "journalctl -u dynamic -o cat | grep -c '^uid 61184 gid 61184 groups \\[\\]\\|^USER=dynamic'", "2")
	if got := w.run(id, "stat -c '%u %a' /var/cache/dynamic"); got != "61184 755" {
		t.Errorf("the cache directory of a dynamic user has owner and mode %s", got)
	}
}

func TestPowerOff(t *testing.T) {
	w := newTestRunner(t, map[string]string{
		"usr/local/bin/doomed": "#!/bin/sh\ntest -e /run/doom || exec sleep 1000\nexit 1\n",
		"usr/local/bin/witness": "#!/bin/sh\ntrap 'systemctl is-system-running; systemctl list-jobs --no-legend " +
			"--plain | grep poweroff; exit 0' TERM\nwhile :; do sleep 0.05; done\n",
	})
	id := w.service(map[string]string{"daemon.service": hardened,
		"doomed.service": "[Unit]\nStartLimitBurst=2\nStartLimitIntervalSec=1h\nStartLimitAction=poweroff\n" +
			"[Service]\nRestart=always\nRestartSec=10ms\nExecStart=/usr/local/bin/doomed\n",
		"witness.service": "[Service]\nExecStart=/usr/local/bin/witness\n"})
	m, _ := w.Machine(id)
	w.run(id, "systemctl enable daemon; systemctl start daemon; systemctl start witness")

	// A rebooted machine starts the enabled units, but does not run the boot script.
	w.end(id, "touch /run/gone /var/stays; systemctl reboot")
	w.eventually(id, "test ! -e /run/gone && systemctl is-active daemon && systemctl is-system-running",
		"active\nrunning")
	w.run(id, "test -e /var/stays; systemctl start witness")
	w.end(id, "touch /run/doom; systemctl start --no-block doomed")
	select {
	case <-m.Dead():
	case <-time.After(10 * time.Second):
		t.Fatal("it did not power off")
	}
	log := w.Logs(id)
	for _, want := range []string{"poweroff: doomed.service was started too often", ": stopping",
		": 1 poweroff.target start waiting", ": ends well", "Powering off."} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	if strings.Count(log, "the script ended well") != 1 {
		t.Error("the boot script ran again")
	}
	if _, err := w.Exec(id, "true"); err == nil {
		t.Error("a command ran in a machine that has ended")
	}
}
