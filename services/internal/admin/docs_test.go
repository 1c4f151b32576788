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

// TestGenerated checks that the command reference is current: the list of commands in docs/reference/admin.md, and the
// pages that it links to. A command with many commands of its own has a page; the others are on one page.
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
	env := System()
	env.Getenv = func(string) string { return "" }
	pages := map[string]string{"other": "# Other commands of nstance-admin\n"}
	list := "\n| command | |\n|---|---|\n"
	for _, cmd := range newApp("1", env).command().Commands() {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		name := "other"
		if len(cmd.Commands()) > 3 {
			name = cmd.Name()
			pages[name] = "# " + cmd.CommandPath() + "\n"
		}
		pages[name] += reference(cmd)
		walk(cmd, func(cmd *command) {
			if !cmd.HasSubCommands() {
				list += fmt.Sprintf("| [`%s`](admin-%s.md#%s) | %s |\n",
					strings.TrimPrefix(cmd.CommandPath(), "nstance-admin "), name,
					strings.ReplaceAll(cmd.CommandPath(), " ", "-"), cmd.Short)
			}
		})
	}
	golden(t, page, before+begin+list+"\n"+end+after)
	for name, text := range pages {
		golden(t, strings.TrimSuffix(page, ".md")+"-"+name+".md", text)
	}
}

// reference describes a command and its subcommands in Markdown.
func reference(cmd *command) string {
	var b strings.Builder
	walk(cmd, func(cmd *command) {
		level := "##"
		if cmd.Parent().HasParent() {
			level = "###"
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
	return b.String()
}

func flagTable(flags *pflag.FlagSet) string {
	var b strings.Builder
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Name == "help" || flag.Hidden {
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
