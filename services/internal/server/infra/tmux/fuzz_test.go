package tmux

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

func FuzzParseDocument(f *testing.F) {
	id, err := ident.ParseID("tst06bgm7733st2576nx5jht4ecjw")
	if err != nil {
		f.Fatal(err)
	}
	d := newDocument(infra.CreateRequest{Tags: infra.Tags{Instance: id, Group: "g"}}, "digest", time.Unix(1, 2),
		time.Unix(1, 3))
	d.PID, d.Start = 12, "34@56"
	good, err := json.Marshal(d)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(good))
	for _, bad := range []string{
		"", "{}", "null", "[]", string(good) + "{}", strings.Replace(string(good), `"version":1`, `"version":2`, 1),
		strings.Replace(string(good), `"pid":12`, `"pid":0`, 1), strings.Replace(string(good), `"pid":12`, `"pid":-12`,
			1),
		strings.Replace(string(good), `"version":1`, `"version":1,"odd":1`, 1),
		strings.Replace(string(good), "06bgm", "06bgn", 1),
		strings.Replace(string(good), `"request":"digest"`, `"request":""`, 1),
		strings.Replace(string(good), "1970-01-01T00:00:01.000000002", "0001-01-01T00:00:00", 1),
		strings.Replace(string(good), "1970-01-01T00:00:01.000000003", "0001-01-01T00:00:00", 1),
	} {
		if _, err := parseDocument([]byte(bad), id); err == nil {
			f.Errorf("accepted %s", bad)
		}
		f.Add(bad)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := parseDocument([]byte(text), id)
		if err != nil {
			return
		}
		raw, err := json.Marshal(d)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		again, err := parseDocument(raw, id)
		if diff := cmp.Diff(d, again, cmp.AllowUnexported(document{}, ident.ID{})); err != nil || diff != "" {
			t.Errorf("%q changes when written: %v\n%s", text, err, diff)
		}
	})
}

func FuzzParsePanes(f *testing.F) {
	f.Add("@1 12 0 test nstance-agent-x\n@2 13 1 test a b\n@3 14 0 test-2 c\n@4 15 0 test \n")
	f.Add("@1 x 0 test y\n")
	f.Add("@1 1 0 test\n")
	for _, bad := range []string{"@1 x 0 test y\n", "@1 1 0 test\n"} {
		if panes, err := parsePanes(bad, "test"); err == nil {
			f.Errorf("%q is %v", bad, panes)
		}
	}
	got, err := parsePanes("@1 12 0 test nstance-agent-x\n@2 13 1 test a b\n@3 14 0 test-2 c\n@4 15 0 test \n", "test")
	want := []pane{{"@1", "nstance-agent-x", 12, false}, {"@2", "a b", 13, true}, {"@4", "", 15, false}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(pane{})); err != nil || diff != "" {
		f.Errorf("%v\n%s", err, diff)
	}
	f.Fuzz(func(t *testing.T, text string) {
		panes, err := parsePanes(text, "test")
		if err != nil && panes != nil {
			t.Errorf("%q: panes beside an error", text)
		}
		if len(panes) > strings.Count(text, " test ") {
			t.Errorf("%q: %d panes", text, len(panes))
		}
	})
}

func FuzzParseUserdata(f *testing.F) {
	f.Add([]byte("#!/bin/sh\nexit 0\n"))
	f.Add([]byte("IyEvYmluL3NoCg=="))
	f.Add([]byte(gzipMagic + "\x08\x00"))
	f.Add([]byte("#cloud-config\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		u, err := parseUserdata(raw)
		if err != nil {
			return
		}
		if len(u.script) > userdataMax || !strings.HasPrefix(string(u.script), "#!") || len(u.interpreter) < 1 ||
			len(u.interpreter) > 2 {
			t.Errorf("%q: %q run by %q", raw, u.script, u.interpreter)
		}
	})
}
