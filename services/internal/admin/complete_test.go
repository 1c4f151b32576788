package admin

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/internal/admin/fleettest"
)

// TestMain runs the program instead of the tests if the binary is called by the program's name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "nstance-admin" {
		env := System()
		env.Now = fleettest.Clock
		main, stop := mainContext()
		code := Run(main, os.Args[1:], "1.2.3", env)
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// completeInBash presses Tab in a bash with the program's completion script. Without the package bash-completion, the
// script needs one function of it, which is here as that package describes it.
const completeInBash = `
_get_comp_words_by_ref() {
	words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD
	cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}
}
__ltrim_colon_completions() { :; }
compopt() { :; }
source <(nstance-admin completion bash) || exit 1
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; COMP_KEY=9
__start_nstance-admin
printf '%s\n' "${COMPREPLY[@]}"
`

// TestCompletion completes the names of shards, groups, instances and contexts in a real bash.
func TestCompletion(t *testing.T) {
	cli, _, b, _ := shards(t)
	b.Groups[0].Group = "web"
	bin := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, "nstance-admin")); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(t.TempDir(), "nstance")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(home, "config.yaml"), []byte("contexts: {prod: {}, dev: {}}\n"))
	for line, want := range map[string][]string{
		"nstance-admin instance des":                     {"describe"},
		"nstance-admin group describe --shard ":          {"us-a", "us-b"},
		"nstance-admin group describe --shard us-b":      {"us-b"},
		"nstance-admin group describe ":                  {"batch", "web", "workers"},
		"nstance-admin group scale --shard us-b ":        {"batch", "web"},
		"nstance-admin group scale --shard us-b w":       {"web"},
		"nstance-admin group scale web ":                 {""},
		"nstance-admin instance list --group wo":         {"workers"},
		"nstance-admin explain instance " + firstID[:27]: {firstID, secondID},
		"nstance-admin context use ":                     {"dev", "prod"},
		"nstance-admin group describe workers --output ": {"table", "json", "yaml"},
	} {
		words := strings.Split(line, " ")
		args := append([]string{"--norc", "-c", completeInBash, "bash"}, words...)
		cmd := exec.CommandContext(t.Context(), "bash", args...)
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "XDG_CONFIG_HOME=" + filepath.Dir(home),
			envServers + "=" + cli.env[envServers], envIdentity + "=" + cli.env[envIdentity]}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", line, err, out)
		}
		var got []string
		for reply := range strings.SplitSeq(strings.TrimSuffix(string(out), "\n"), "\n") {
			word, _, _ := strings.Cut(strings.TrimSpace(reply), " ") // a description may follow
			got = append(got, word)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", line, diff)
		}
	}
}
