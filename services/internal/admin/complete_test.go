package admin

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

// TestMain runs nstance-admin instead of the tests if the test binary was started under the name nstance-admin.
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

// completeInBash presses Tab in a bash with the program's completion script. That script needs a function of the
// package bash-completion. completeInBash defines this function, because the package may not be installed.
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

// completeInZsh presses Tab in an interactive zsh on a pseudoterminal, with the program's completion script. The file
// $REPLIES receives the words that zsh offers.
const completeInZsh = `
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PROMPT=; autoload -Uz compinit; compinit -u -D
source <(nstance-admin completion zsh)
compadd() { local -a found; builtin compadd -O found "$@"; print -rl -- $found >>$REPLIES; builtin compadd "$@"; }
finish() { print -r -- done >>$REPLIES; exit; }
comppostfuncs=(finish)
bindkey "^I" complete-word
print -r -- rea""dy'
while zpty -r shell text; do [[ $text == *ready* ]] && break; done
zpty -n -w shell "$1"$'\t'
while zpty -r shell text; do :; done
`

// completions maps command lines to the words that complete them.
var completions = map[string][]string{
	"nstance-admin instance des":                     {"describe"},
	"nstance-admin group describe --shard ":          {"us-a", "us-b"},
	"nstance-admin group describe --shard us-b":      {"us-b"},
	"nstance-admin group describe ":                  {"batch", "web", "workers"},
	"nstance-admin group scale --shard us-b ":        {"batch", "web"},
	"nstance-admin group scale --shard us-b w":       {"web"},
	"nstance-admin group scale web ":                 {},
	"nstance-admin instance list --group wo":         {"workers"},
	"nstance-admin explain instance " + firstID[:27]: {firstID, secondID},
	"nstance-admin context use ":                     {"dev", "prod"},
	"nstance-admin group describe workers --output ": {"json", "table", "wide", "yaml"},
}

// completionWorld starts two shards and returns the environment of a shell in which the program is on the path.
func completionWorld(t *testing.T) []string {
	t.Helper()
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
	return []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "XDG_CONFIG_HOME=" + filepath.Dir(home),
		envServers + "=" + cli.env[envServers], envIdentity + "=" + cli.env[envIdentity]}
}

// offered returns the first word of each line, sorted. zsh writes a description after some words.
func offered(text string) []string {
	candidates := []string{}
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 {
			candidates = append(candidates, fields[0])
		}
	}
	slices.Sort(candidates)
	return slices.Compact(candidates)
}

// TestCompletionInBash completes the names of shards, groups, instances and contexts in a real bash.
func TestCompletionInBash(t *testing.T) {
	env := completionWorld(t)
	for line, want := range completions {
		args := append([]string{"--norc", "-c", completeInBash, "bash"}, strings.Split(line, " ")...)
		cmd := exec.CommandContext(t.Context(), "bash", args...)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", line, err, out)
		}
		if diff := cmp.Diff(want, offered(string(out))); diff != "" {
			t.Errorf("%q (-want +got):\n%s", line, diff)
		}
	}
}

// TestCompletionInZsh completes the names of shards, groups, instances and contexts in a real zsh. CI installs zsh;
// other machines may lack it.
func TestCompletionInZsh(t *testing.T) {
	if _, err := exec.LookPath("zsh"); err != nil && os.Getenv("CI") == "" {
		t.Skip("zsh is not installed: apt-get install zsh")
	}
	env := completionWorld(t)
	for line, want := range completions {
		replies := filepath.Join(t.TempDir(), "replies")
		cmd := exec.CommandContext(t.Context(), "zsh", "-f", "-c", completeInZsh, "zsh", line)
		cmd.Env = append(env, "REPLIES="+replies, "TERM=xterm")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", line, err, out)
		}
		got, err := os.ReadFile(replies)
		if err != nil {
			t.Fatalf("%q: zsh did not complete: %v", line, err)
		}
		text, ended := strings.CutSuffix(string(got), "done\n")
		if diff := cmp.Diff(want, offered(text)); diff != "" || !ended {
			t.Errorf("%q, ended: %v (-want +got):\n%s", line, ended, diff)
		}
	}
}
