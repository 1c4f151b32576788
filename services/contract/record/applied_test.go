package record_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tailscale/hujson"

	"github.com/nstance-kit/nstance/services/contract/record"
)

func applied() record.Applied {
	return record.Applied{
		Schema: record.AppliedSchema, Revision: 4, Term: 7, Source: `"d41d8cd98f00b204e9800998ecf8427e"`,
		Body: []byte("// ours\n{\"cluster\": {\"id\": \"example\"},}\n"),
	}
}

func TestApplied(t *testing.T) {
	data, err := applied().Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := record.DecodeApplied(golden(t, "applied.jsonc", data))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(applied(), got); diff != "" {
		t.Error(diff)
	}
	// The whole object, with its header line, is valid JSONC.
	if _, err := hujson.Standardize(data); err != nil {
		t.Error(err)
	}
	for name, text := range map[string]string{
		"empty":       "",
		"no head":     string(applied().Body),
		"no break":    `// nstance-applied {"schema":1,"revision":1,"term":1,"source":"x"}`,
		"newer":       "// nstance-applied {\"schema\":2}\n",
		"unknown":     "// nstance-applied {\"schema\":1,\"revision\":1,\"term\":1,\"source\":\"x\",\"body\":\"\"}\n",
		"no revision": "// nstance-applied {\"schema\":1,\"term\":1,\"source\":\"x\"}\n",
		"no source":   "// nstance-applied {\"schema\":1,\"revision\":1,\"term\":1}\n",
		"too large":   string(data) + strings.Repeat(" ", record.MaxConfig),
	} {
		if got, err := record.DecodeApplied([]byte(text)); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func FuzzApplied(f *testing.F) { fuzz(f, record.DecodeApplied, applied()) }
