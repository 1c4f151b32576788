package tmux

import (
	"os"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// FuzzMachineState checks that MachineState returns a state only for machines of this host. For a malformed ID, it must
// never report that the machine is gone. A server reads such IDs from locks that other servers wrote.
func FuzzMachineState(f *testing.F) {
	self, err := MachineID()
	if err != nil {
		f.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{self, self + "0", host + "/1:1", host + "/0:1", host + "/-1:1", host +
		"/99999999999999999999:1", host + "/1:", "/1:1", "else/1:1", "", "i-0123456789abcdef0", host + "/+1:x@y"} {
		f.Add(text)
	}
	p := &Provider{}
	f.Fuzz(func(t *testing.T, text string) {
		state, err := p.MachineState(t.Context(), text)
		rest, ours := strings.CutPrefix(text, host+"/")
		switch class := infra.ClassOf(err); {
		case err != nil:
			if state != "" || class != infra.Invalid && class != infra.NotFound {
				t.Errorf("%q: %q, %v", text, state, err)
			}
		case !ours || strings.Count(rest, ":") == 0 || state != infra.Running && state != infra.Deleted:
			t.Errorf("%q: %q", text, state)
		case text == self && state != infra.Running:
			t.Errorf("this process is %q", state)
		}
	})
}
