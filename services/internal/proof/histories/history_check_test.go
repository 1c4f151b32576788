package histories

import (
	"math"
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestHistories checks that the linearizability check accepts possible histories of a register and rejects impossible
// ones.
func TestHistories(t *testing.T) {
	put := func(begin, end int64, condition, token string, what outcome) op {
		if what == unknown {
			end = math.MaxInt64
		}
		return op{begin: begin, end: end, put: true, condition: condition, token: token, outcome: what}
	}
	get := func(begin, end int64, token string) op { return op{begin: begin, end: end, token: token} }
	for name, test := range map[string]struct {
		ops  []op
		want porcupine.CheckResult
	}{
		"in order": {[]op{put(1, 2, "", "a", done), get(3, 4, "a"), put(5, 6, "a", "b", done),
			get(7, 8, "b")}, porcupine.Ok},
		"stale read": {[]op{put(1, 2, "", "a", done), put(3, 4, "a", "b", done), get(5, 6, "a")},
			porcupine.Illegal},
		"read beside a write": {[]op{put(1, 2, "", "a", done), put(3, 6, "a", "b", done), get(4, 5, "a"),
			get(7, 8, "b")}, porcupine.Ok},
		"two writes on one condition": {[]op{put(1, 2, "", "a", done), put(3, 4, "a", "b", done),
			put(5, 6, "a", "c", done)}, porcupine.Illegal},
		"conflict without cause": {[]op{put(1, 2, "", "a", done), put(3, 4, "a", "b", conflict)},
			porcupine.Illegal},
		"conflict": {[]op{put(1, 2, "", "a", done), put(3, 4, "a", "b", done),
			put(5, 6, "a", "c", conflict)}, porcupine.Ok},
		"unknown, never seen": {[]op{put(1, 2, "", "a", done), put(3, 0, "a", "b", unknown),
			get(5, 6, "a"), put(7, 8, "a", "c", done)}, porcupine.Ok},
		"unknown, seen later": {[]op{put(1, 2, "", "a", done), put(3, 0, "a", "b", unknown),
			get(5, 6, "a"), get(7, 8, "b")}, porcupine.Ok},
		"unknown, seen and gone again": {[]op{put(1, 2, "", "a", done), put(3, 0, "a", "b", unknown),
			get(5, 6, "b"), get(7, 8, "a")}, porcupine.Illegal},
		"unknown, sent again, then done": {[]op{put(1, 0, "", "a", unknown), put(3, 4, "", "a", done),
			get(5, 6, "a")}, porcupine.Ok},
		"unknown, sent again, conflict": {[]op{put(1, 0, "", "a", unknown), put(3, 4, "", "a", conflict),
			get(5, 6, "a")}, porcupine.Ok},
		"unknown upon unknown": {[]op{put(1, 0, "", "a", unknown), put(2, 0, "a", "b", unknown),
			get(5, 6, "b")}, porcupine.Ok},
		"unknown upon what was never there": {[]op{put(1, 2, "", "a", done), put(3, 0, "x", "b", unknown),
			get(5, 6, "b")}, porcupine.Illegal},
	} {
		t.Run(name, func(t *testing.T) {
			var operations []porcupine.Operation
			for i, o := range settled(test.ops) {
				operations = append(operations, porcupine.Operation{ClientId: i, Input: o, Call: o.begin,
					Return: o.end})
			}
			if got := porcupine.CheckOperationsTimeout(register, operations, checkTimeout); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}
