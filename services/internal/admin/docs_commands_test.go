package admin

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	commandText = regexp.MustCompile("nstance-admin( +[^`|;&#\n]+)")
	commandName = regexp.MustCompile(`^[a-z][a-z-]*$`)
)

// TestDocumentsNameCommands checks that all commands and flags of nstance-admin in the documents exist.
func TestDocumentsNameCommands(t *testing.T) {
	env := System()
	env.Getenv = func(string) string { return "" }
	root := newApp("1", env).command()
	found := 0
	err := filepath.WalkDir("../../..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "temp", "testdata", "node_modules"}, entry.Name()):
			return fs.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		// Look for commands only in code: in lines of code blocks, and in code spans.
		text := strings.ReplaceAll(string(raw), "\\\n", " ")
		block := false
		for line := range strings.SplitSeq(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				block = !block
				continue
			}
			line, _, _ = strings.Cut(line, " # ")
			pieces := []string{line}
			if !block {
				pieces = nil
				for i, piece := range strings.Split(line, "`") {
					if i%2 == 1 {
						pieces = append(pieces, piece)
					}
				}
			}
			for _, piece := range pieces {
				for _, match := range commandText.FindAllStringSubmatch(piece, -1) {
					found++
					checkCommand(t, path, root, strings.Fields(match[1]))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 50 {
		t.Errorf("found %d commands", found)
	}
}

// checkCommand checks that the words begin with a command's name and have only flags of that command. Other words are
// arguments.
func checkCommand(t *testing.T, path string, cmd *command, args []string) {
	t.Helper()
	text := strings.Join(args, " ")
	for _, arg := range args {
		if name, ok := strings.CutPrefix(arg, "--"); ok {
			name, _, _ = strings.Cut(name, "=")
			if name = strings.TrimRight(name, ".,)]\"'"); name == "help" || name == "version" {
				continue
			}
			if cmd.Flags().Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil {
				t.Errorf("%s: nstance-admin %s: %s has no flag --%s", path, text, cmd.CommandPath(), name)
			}
			continue
		}
		if !cmd.HasSubCommands() || !commandName.MatchString(arg) {
			continue
		}
		next, _, err := cmd.Find([]string{arg})
		if err != nil || next == cmd {
			t.Errorf("%s: nstance-admin %s: %s has no command %s", path, text, cmd.CommandPath(), arg)
			return
		}
		cmd = next
	}
}
