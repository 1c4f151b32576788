package bench

import (
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// mayEnd says how each attack may end. Aborted are those that another of the same instance's connections has replaced; refused connections were
// more than wait to be accepted.
var mayEnd = map[string][]string{
	"silent":           {"closed", "refused"},
	"slow":             {"closed"},
	"oversized":        {"ResourceExhausted"},
	"malformed":        {"Internal"},
	"garbage":          {"closed"},
	"forged nonce":     {"Unauthenticated"},
	"replayed nonce":   {"PermissionDenied", "Unauthenticated"},
	"wrong role":       {"PermissionDenied"},
	"another's name":   {"PermissionDenied", "Aborted"},
	"oversized report": {"ResourceExhausted", "Aborted"},
	"streams":          {"OK"},
}

// attack starts the attackers and returns when their silent connections are open. stop ends them and returns what became of their attacks.
func (s *stack) attack(e entered, silent, slow int) (stop func() map[string]map[string]int) {
	s.b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), attackersEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		s.b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.b.Fatal(err)
	}
	s.b.Cleanup(func() { _ = cmd.Process.Kill() })
	if err := json.NewEncoder(in).Encode(target{CA: s.caBundle(), Nonce: string(e.req.Userdata), ID: e.req.Tags.Instance.String(), Other: s.members[0][0],
		Registration: s.ports[2], Operator: s.ports[3], Agent: s.ports[4], Silent: silent, Slow: slow}); err != nil {
		s.b.Fatal(err)
	}
	decoder := json.NewDecoder(out)
	var waiting int
	if err := decoder.Decode(&waiting); err != nil {
		s.b.Fatalf("attackers: %v", err)
	}
	if waiting < silent/2 {
		s.b.Errorf("only %d of %d silent connections are open", waiting, silent)
	}
	return func() (seen map[string]map[string]int) {
		_ = in.Close()
		if err := decoder.Decode(&seen); err != nil {
			s.b.Errorf("attackers: %v", err)
		}
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			s.b.Errorf("attackers: %v", err)
		}
		return seen
	}
}

// judge fails the test if an attack did not happen, or did not end as it must.
func judge(t testing.TB, seen map[string]map[string]int) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(mayEnd)) {
		t.Logf("%-16s %v", name, seen[name])
		if len(seen[name]) == 0 {
			t.Errorf("%s: did not happen", name)
		}
		for outcome, count := range seen[name] {
			if !slices.Contains(mayEnd[name], outcome) {
				t.Errorf("%s: %d times %s, want %s", name, count, outcome, strings.Join(mayEnd[name], " or "))
			}
		}
	}
}

// prey starts a stack whose last instance is the attackers'.
func prey(b testing.TB, agents int) (*stack, entered) {
	b.Helper()
	s := newStack(b, agents+groups, 0, true)
	s.fill(agents / groups)
	e := <-s.creates[0]
	for _, creates := range s.creates[1:] {
		<-creates // has no agent
	}
	return s, e
}

// TestHostileClients: whatever hostile clients do is refused as it must be, and meanwhile good agents' losses are heard of. BenchmarkHostile says how soon.
func TestHostileClients(t *testing.T) {
	if testing.Short() {
		t.Log("attacks are left out of a short run")
		return
	}
	s, e := prey(t, 50)
	stop := s.attack(e, 500, 20)
	s.losses("power_off", 4, false)
	<-time.After(12 * time.Second) // a handshake may last for ten
	judge(t, stop())
}

// BenchmarkHostile: the same as BenchmarkPowerOff, with and without ten thousand silent connections from one address, slow handshakes and everything
// else that hostile clients can do.
func BenchmarkHostile(b *testing.B) {
	s, e := prey(b, 1000)
	for b.Loop() {
		percentiles(b, "quiet", s.losses("power_off", 60, false))
		stop := s.attack(e, 10_000, 200)
		percentiles(b, "attacked", s.losses("power_off", 60, false))
		judge(b, stop())
	}
}
