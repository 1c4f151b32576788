package machinegroup_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup"
)

// group returns the answers one after the other.
type group []any

func (g *group) Look(context.Context) (machinegroup.State, error) {
	answer := (*g)[0]
	*g = (*g)[1:]
	if err, failed := answer.(error); failed {
		return machinegroup.State{}, err
	}
	return answer.(machinegroup.State), nil
}

func (g *group) String() string { return "group g" }

func TestWatch(t *testing.T) {
	refused := func(n int) machinegroup.State { return machinegroup.State{Refusal: "no room", Refusals: n} }
	for name, test := range map[string]struct {
		answers []any
		final   []bool // after each answer
		found   string
	}{
		"a refusal that lasts": {
			[]any{refused(1), refused(1), refused(1), refused(1), refused(1), refused(1), refused(1)},
			[]bool{false, false, false, false, false, false, true}, "the cloud refused the last machine: no room"},
		"another attempt is refused": {[]any{refused(1), refused(1), refused(2)}, []bool{false, false, true},
			"the cloud refused the last machine: no room"},
		"another attempt is refused after it went on at a look": {
			[]any{refused(1), machinegroup.State{Doing: "starts"}, refused(2)}, []bool{false, false, true},
			"the cloud refused the last machine: no room"},
		// An earlier apply has seen these refusals.
		"old refusals": {[]any{refused(9), refused(9), refused(10)}, []bool{false, false, true},
			"the cloud refused the last machine: no room"},
		"a passing refusal": {
			[]any{refused(1), refused(1), machinegroup.State{}, refused(1), refused(1),
				machinegroup.State{Doing: "starts"}},
			[]bool{false, false, false, false, false, false}, "starts"},
		"no permission": {
			[]any{errors.New("denied"), errors.New("denied"), errors.New("denied"), errors.New("denied"),
				errors.New("denied"), errors.New("denied"), errors.New("denied"), errors.New("denied")},
			make([]bool, 8), "the group g cannot be read: denied"},
		"not read in between": {
			[]any{refused(1), refused(1), refused(1), refused(1), errors.New("timeout"), refused(1), refused(1),
				refused(1)},
			make([]bool, 8), "the cloud refused the last machine: no room"},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			g := group(test.answers)
			watch := machinegroup.NewWatch(&g, func() time.Time { return now })
			for i, want := range test.final {
				// The second of these asks nothing.
				for _, pause := range []time.Duration{0, time.Second} {
					now = now.Add(pause)
					if got := watch.Look(t.Context()); (got.Refusal != "") != want {
						t.Errorf("look %d: %+v, want a refusal: %v", i, got, want)
					}
				}
				now = now.Add(9 * time.Second)
			}
			if got := watch.Found(); got != test.found || len(g) > 0 {
				t.Errorf("found %q, want %q; %d answers are left", got, test.found, len(g))
			}
		})
	}
}

// TestWatchEnds checks that the end of the wait does not hide what the last look found.
func TestWatchEnds(t *testing.T) {
	g := group{machinegroup.State{Doing: "starts"}, context.Canceled}
	now := time.Now()
	watch := machinegroup.NewWatch(&g, func() time.Time { return now })
	ctx, cancel := context.WithCancel(t.Context())
	watch.Look(ctx)
	cancel()
	now = now.Add(time.Hour)
	if watch.Look(ctx); watch.Found() != "starts" {
		t.Errorf("found %q", watch.Found())
	}
}

func TestWatchNothing(t *testing.T) {
	watch := machinegroup.NewWatch(nil, time.Now)
	if got := watch.Look(t.Context()); got != (machinegroup.State{}) || watch.Found() != "" {
		t.Errorf("without a group: %+v, %q", got, watch.Found())
	}
}
