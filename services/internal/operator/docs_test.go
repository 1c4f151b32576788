package operator

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/nstance-kit/nstance/services/internal/operator/settings"
)

var update = flag.Bool("update", false, "write the generated part of docs/reference/operator.md")

const (
	page  = "../../../docs/reference/operator.md"
	begin = "<!-- generated from the flags and variables of services/internal/operator: begin -->\n"
	end   = "<!-- generated: end -->\n"
)

// TestGenerated checks that flags and variables in docs/reference/operator.md are current.
func TestGenerated(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s does not have the lines %q and %q", page, begin, end)
	}
	want := before + begin + reference() + end + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(text), want); diff != "" {
		t.Errorf("%s (-file +now; -update writes it):\n%s", page, diff)
	}
}

func reference() string {
	var b strings.Builder
	b.WriteString("\n## Flags\n\n| flag | default | |\n|---|---|---|\n")
	newFlags(new(Options)).VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", f.Name, code(f.DefValue), cell(strings.ReplaceAll(f.Usage, "`", "")))
	})
	b.WriteString(
		"\n## Environment\n\nAn empty variable counts as not set. The operator reports all invalid " +
			"variables together.\n\n| variable | default | |\n|---|---|---|\n")
	for _, v := range settings.Variables() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.Name, code(v.Default), cell(v.Text))
	}
	return b.String() + "\n"
}

func code(value string) string {
	if value == "" || value == "false" {
		return "–"
	}
	return "`" + value + "`"
}

func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }
