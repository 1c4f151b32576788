package operatoridentity

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

const noted = `{"Cluster":"example","Tenant":"default","ID":"opr06bgm7733st2576nx5jht4ecjw"}`

func TestParseNote(t *testing.T) {
	made, err := parseNote([]byte(noted))
	if err != nil || made.Cluster != "example" || made.Tenant != "default" ||
		made.ID.String() != "opr06bgm7733st2576nx5jht4ecjw" {
		t.Errorf("%+v, %v", made, err)
	}
	for note, want := range map[string]string{
		"": "note", "{}": "cluster", `null`: "cluster", strings.ReplaceAll(noted, "default", ""): "tenant",
		strings.ReplaceAll(noted, "opr", "wrk"):                        "no operator's ID",
		strings.ReplaceAll(noted, "opr06bgm7733st2576nx5jht4ecjw", ""): "no operator's ID", noted + "{}": "follows",
		`{"X":1}`: "note",
	} {
		if made, err := parseNote([]byte(note)); err == nil || made != (registered{}) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %q", note, made, err, want)
		}
	}
}

// FuzzParseNote checks that parseNote accepts only notes that Open could have written.
func FuzzParseNote(f *testing.F) {
	for _, seed := range []string{noted, "{}", "null", "[]", noted + noted, `{"ID": 1}`,
		strings.ReplaceAll(noted, "opr", "wrk")} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, note []byte) {
		made, err := parseNote(note)
		if err != nil {
			if made != (registered{}) {
				t.Errorf("%+v beside %v", made, err)
			}
			return
		}
		if ident.ValidateClusterName(made.Cluster) != nil || ident.ValidateTenantName(made.Tenant) != nil ||
			made.ID.Prefix() != ident.OperatorPrefix {
			t.Errorf("%+v", made)
		}
		text, err := json.Marshal(made)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseNote(text); err != nil || again != made {
			t.Errorf("%+v, %v, want %+v", again, err, made)
		}
	})
}
