package tmux

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func FuzzParseStat(f *testing.F) {
	// A line in the format of proc_pid_stat(5). The name of its command is "a) Z 1", which looks like the next fields.
	const line = "26036 (a) Z 1) S 26032 26036 26035 34816 26036 4194304 95 0 0 0 0 0 0 0 20 0 7 0 1234567 2871296 " +
		"256 1844\n"
	f.Add(line)
	f.Add(strings.Replace(line, ") S ", ") Z ", 1))
	f.Add("1 (x")
	got, err := parseStat([]byte(line))
	if want := (stat{state: 'S', session: 26035, threads: 7, ticks: 1234567}); err != nil || got != want {
		f.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if (stat{state: 'Z', threads: 2}).ended() || !(stat{state: 'Z', threads: 1}).ended() ||
		(stat{state: 'T', threads: 1}).ended() {
		f.Error("ended is wrong")
	}
	beforeStart, _, _ := strings.Cut(line, " 1234567")
	for _, bad := range []string{"", beforeStart, strings.Replace(line, " 1234567 ", " x ", 1)} {
		if s, err := parseStat([]byte(bad)); err == nil {
			f.Errorf("%q is %+v", bad, s)
		}
	}
	f.Fuzz(func(_ *testing.T, text string) {
		_, _ = parseStat([]byte(text)) // it must not panic
	})
}

// TestChildOutlivesItsMachine checks a VM whose process has ended while a child ignores SIGHUP. Deleting the VM ends the
// child. A session that has the same number after a reboot is not the VM's.
func TestChildOutlivesItsMachine(t *testing.T) {
	pipe, wait := fifo(t)
	options := testOptions(t)
	options.Command = "trap '' HUP; sh -c 'echo $$ > " + pipe + "; while :; do sleep 1000; done' & exec sleep 1000000"
	p := open(t, options)
	vm := create(t, p, newRequest(t, ""))
	var pid int
	if _, err := fmt.Sscan(wait(), &pid); err != nil {
		t.Fatal(err)
	}
	child, ok := identify(pid)
	if !ok {
		t.Fatal("no child")
	}
	p.kill(t, vm)
	killSession(process{p.document(t, vm).PID, "1@another-boot"})
	if child.awaitExit(t.Context(), 50*time.Millisecond) {
		t.Error("the child was killed as a process of another boot")
	}
	if err := p.Delete(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	if !child.awaitExit(t.Context(), time.Minute) {
		t.Error("the child survives the deletion of its machine")
	}
}
