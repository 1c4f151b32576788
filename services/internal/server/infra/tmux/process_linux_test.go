package tmux

import (
	"strings"
	"testing"
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
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseStat([]byte(text))
		if err == nil && s.state == 0 {
			t.Errorf("%q: no state", text)
		}
	})
}
