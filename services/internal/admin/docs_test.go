package admin

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

type command = cobra.Command

// walk calls `each` for every command except cobra's built-in commands.
func walk(cmd *command, each func(*command)) {
	if cmd.Name() == "help" || cmd.Name() == "completion" {
		return
	}
	each(cmd)
	for _, sub := range cmd.Commands() {
		walk(sub, each)
	}
}

const (
	page  = "../../../docs/reference/admin.md"
	begin = "<!-- generated from the commands of services/internal/admin: begin -->\n"
	end   = "<!-- generated: end -->\n"
)

// TestGenerated checks that the command reference in docs/reference/admin.md is current.
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
	golden(t, page, before+begin+reference()+end+after)
}

// reference describes every command in Markdown.
func reference() string {
	env := System()
	env.Getenv = func(string) string { return "" }
	var b strings.Builder
	walk(newApp("1", env).command(), func(cmd *command) {
		if !cmd.HasParent() {
			return
		}
		level := "###"
		if cmd.Parent().HasParent() {
			level = "####"
		}
		fmt.Fprintf(&b, "\n%s `%s`\n\n%s.\n", level, cmd.CommandPath(), cmd.Short)
		if cmd.Long != "" {
			fmt.Fprintf(&b, "\n%s\n", markdown(cmd.Long))
		}
		if !cmd.HasSubCommands() {
			fmt.Fprintf(&b, "\n```\n%s\n```\n", cmd.UseLine())
		}
		if cmd.Example != "" {
			fmt.Fprintf(&b, "\n```sh\n%s\n```\n", unindent(cmd.Example))
		}
		flags := cmd.NonInheritedFlags()
		if cmd.HasSubCommands() {
			flags = cmd.PersistentFlags()
		}
		if table := flagTable(flags); table != "" {
			if cmd.HasSubCommands() {
				fmt.Fprintf(&b, "\nFlags of all its commands:\n")
			}
			b.WriteString("\n" + table)
		}
	})
	return b.String() + "\n"
}

func flagTable(flags *pflag.FlagSet) string {
	var b strings.Builder
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Name == "help" {
			return
		}
		name := "--" + flag.Name
		if flag.Shorthand != "" {
			name = "-" + flag.Shorthand + ", " + name
		}
		value := flag.DefValue
		if slices.Contains([]string{"", "[]", "false", "0", "0s"}, value) {
			value = "–"
		} else {
			value = "`" + value + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, value, strings.ReplaceAll(flag.Usage, "|", "\\|"))
	})
	if b.Len() == 0 {
		return ""
	}
	return "| flag | default | |\n|---|---|---|\n" + b.String()
}

// markdown converts indented parts to code blocks and keeps the rest.
func markdown(text string) string {
	var out []string
	code := false
	for line := range strings.SplitSeq(text, "\n") {
		indented := strings.HasPrefix(line, "  ")
		if indented && !code {
			out = append(out, "```")
		}
		if code && !indented && line != "" {
			out = append(out[:len(out)-1], "```", "", line)
			code = false
			continue
		}
		code = code || indented
		out = append(out, strings.TrimPrefix(line, "  "))
	}
	if code {
		out = append(out, "```")
	}
	return strings.Join(out, "\n")
}

func unindent(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}
