package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestActionLog writes logs in which a server acts after the end of its term, and logs with two leaders of one term.
// All times in the logs are an hour ahead, because the clocks of real servers may also be wrong.
func TestActionLog(t *testing.T) {
	type entry struct {
		server int
		msg    string
		term   uint64
	}
	for name, tc := range map[string]struct {
		passes [][]entry
		want   string
	}{
		"in order": {[][]entry{{{1, "became leader", 3}, {1, "acting", 3}}, {},
			{{2, "became leader", 4}, {2, "acting", 4}}, {}, {{2, "acting", 4}}}, ""},
		// The test reads the logs in passes, one log after the other. So the order of two actions in the same pass is
		// unknown.
		"same pass":           {[][]entry{{{2, "acting", 4}}, {{1, "acting", 3}}}, ""},
		"acts after its term": {[][]entry{{{2, "acting", 4}}, {}, {{1, "acting", 3}}}, "server-1 acted in term 3"},
		"two leaders of one term": {[][]entry{{{1, "became leader", 3}}, {{2, "became leader", 3}}},
			"server-1 and server-2 led in term 3"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			j := actionLog{acted: map[uint64]int{}, led: map[uint64]string{}}
			var err error
			for _, pass := range tc.passes {
				j.pass++
				for n := 1; n <= servers; n++ {
					path := filepath.Join(dir, fmt.Sprint(n))
					file, openErr := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
					if openErr != nil {
						t.Fatal(openErr)
					}
					for _, e := range pass {
						if e.server == n {
							fmt.Fprintf(file, `{"time":%q,"msg":%q,"term":%d}`+"\n",
								time.Now().Add(time.Hour).Format(time.RFC3339Nano), e.msg, e.term)
						}
					}
					if closeErr := file.Close(); closeErr != nil {
						t.Fatal(closeErr)
					}
					if err == nil {
						err = j.read(n, path)
					}
				}
			}
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if ahead := j.clockAhead("server-1"); tc.passes[0][0].server == 1 && (ahead-time.Hour).Abs() > time.Minute {
				t.Errorf("the clock is %v ahead, want an hour", ahead)
			}
		})
	}
}
