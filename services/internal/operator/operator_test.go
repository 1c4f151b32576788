package operator_test

import "testing"

// One operator, from its registration to the end of a machine, undisturbed.
func TestScenario(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	r := newRig(t, kubernetes(t), "undisturbed", scenarioGroups)
	p := r.start(nil)
	r.play(func() {
		if p.ended() {
			t.Fatalf("the operator has ended: %v", p.err)
		}
	})
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}
