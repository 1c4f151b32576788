package function

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// FuzzTake checks that the parts of an ID match the ID: Storage is "UUID-Kind", and CreatedAt is the ID's time in RFC
// 3339.
func FuzzTake(f *testing.F) {
	for _, seed := range []string{"acc06bgm7733st2576nx5jht4ecjw", "wrk06bgm7733st2576nx5jht4ecjw",
		"wrkzzzzzzzzzzzzzzzzzzzzzzzzzz", "wrk", "", "ACC06BGM7733ST2576NX5JHT4ECJW"} {
		f.Add(seed)
	}
	for _, at := range []time.Time{time.UnixMilli(0), time.UnixMilli(1<<48 - 1)} { // the limits of an ID
		if id, err := ident.NewID("wrk", at, rand.Reader); err == nil {
			f.Add(id.String())
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := splitID(text)
		if err != nil {
			if p != (parts{}) {
				t.Errorf("%q: %+v beside %v", text, p, err)
			}
			return
		}
		id, err := ident.ParseID(text)
		if err != nil || id.String() != text || p.Storage != p.UUID+"-"+p.Kind || p.Storage != id.Storage() ||
			len(p.UUID) != 36 || len(p.Kind) != 3 {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
		if at, err := time.Parse(time.RFC3339Nano, p.CreatedAt); err != nil || !at.Equal(id.Time()) {
			t.Errorf("%q was made at %s: %v", text, p.CreatedAt, err)
		}
	})
}
