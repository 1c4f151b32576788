package machine_test

import (
	"strings"
	"testing"
)

const answering = "[Service]\nExecStart=/usr/local/bin/answerer\n[Install]\nWantedBy=multi-user.target\n"

// TestSleepAndWake puts a machine to sleep twice in each way. One of its services has a watchdog, and the machine
// sleeps for longer than the watchdog permits. The other service answers in the network.
func TestSleepAndWake(t *testing.T) {
	for name, memory := range map[string]bool{"shut down": false, "frozen": true} {
		t.Run(name, func(t *testing.T) {
			w := newTestRunner(t, nil).with("answerer")
			watched := strings.Replace(hardened, "WatchdogSec=3s", "WatchdogSec=1s", 1)
			id := w.service(map[string]string{"watched.service": watched, "answering.service": answering})
			w.run(id, "systemctl enable watched && systemctl start watched")
			w.run(id, "systemctl enable answering && systemctl start answering")
			w.run(id, "echo kept >/var/kept && echo lost >/run/lost")
			m, _ := w.Machine(id)
			for range 2 {
				w.eventually(id, "test -e /run/listening && echo yes", "yes")
				w.reaches("awake", w.fromVPC("vpc-a"), "10.0.0.20:7", "ip-10-0-0-20")
				process := w.property(id, "watched", "MainPID")
				if err := m.Sleep(memory); err != nil {
					t.Fatal(err)
				}
				if _, err := w.Exec(id, "true"); err == nil || !strings.Contains(err.Error(), "sleeps") {
					t.Errorf("a command in a sleeping machine: %v", err)
				}
				w.reaches("asleep", w.fromVPC("vpc-a"), "10.0.0.20:7", "")
				w.reaches("asleep", w.fromVPC("vpc-a"), "[fd00:1::14]:7", "")
				if err := m.Wake(); err != nil {
					t.Fatal(err)
				}
				w.eventually(id, "systemctl is-active watched", "active")
				w.eventually(id, "test -e /run/listening && echo yes", "yes")
				w.reaches("woken", w.fromVPC("vpc-a"), "[fd00:1::14]:7", "ip-10-0-0-20")
				if now := w.property(id, "watched", "MainPID"); (now == process) != memory {
					t.Errorf("the service was process %s and is %s", process, now)
				}
				if out, err := w.Exec(id, "cat", "/run/lost"); (err == nil) != memory {
					t.Errorf("/run/lost: %s, %v", out, err)
				}
				if kept := w.run(id, "cat /var/kept"); kept != "kept" {
					t.Errorf("/var/kept: %s", kept)
				}
			}
			if err := m.Wake(); err == nil {
				t.Error("a machine that runs was woken")
			}
			if n := strings.Count(w.Logs(id), "the script ended well"); n != 1 {
				t.Errorf("the boot script ran %d times", n)
			}
			if err := m.Sleep(memory); err != nil {
				t.Fatal(err)
			}
			m.Stop()
			if err := m.Wake(); err == nil {
				t.Error("a machine that was stopped was woken")
			}
		})
	}
}
