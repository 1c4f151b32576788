package admin

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// explainedLines is how many lines of a console "explain" shows.
const explainedLines = 10

func (a *app) instanceConsoleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "console INSTANCE", Short: "Show the console of an instance's VM", Args: cobra.ExactArgs(1),
		Long: `Shows what the VM of an instance has written to its console, as the provider has it now, at
most the newest 64 KiB. Characters that could control the terminal are left out. Some
providers keep the console for a while after the VM has ended. The command needs the role
operator, because the text may contain secrets that the VM printed.

` + instanceHelp,
		Example: `  nstance-admin instance console wrk06bgm7733st2576nx5jht4ecjw
  nstance-admin instance console jht4ecjw --lines 20`,
	}
	request := new(nstancev1.GetInstanceConsoleRequest)
	cmd.Flags().Uint32Var(&request.Lines, "lines", 0, "show only the last lines; 0 shows all")
	return asks(a, cmd, scopeFlags(cmd), fleet.Client.GetInstanceConsole, request, a.writeConsoles, &request.InstanceId)
}

func (a *app) writeConsoles(w io.Writer, answers answers[*nstancev1.GetInstanceConsoleResponse]) error {
	for _, answer := range answers {
		if answer.Err == nil {
			writeConsole(w, answer.Message)
		}
	}
	return nil
}

func writeConsole(w io.Writer, console *nstancev1.GetInstanceConsoleResponse) {
	switch {
	case console.GetText() == "":
		fmt.Fprintln(w, "The provider has no output yet.")
	case console.GetCut():
		fmt.Fprintln(w, "…")
	}
	for line := range strings.Lines(console.GetText()) {
		fmt.Fprintln(w, printable(strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "\t", "    ")))
	}
}

// writeLateConsole writes the last lines of the console of the first instance whose agent is late to register, or why
// they cannot be read.
func (a *app) writeLateConsole(ctx context.Context, w io.Writer, s *scope,
	answers answers[*nstancev1.ExplainGroupResponse]) error {
	for _, answer := range answers {
		for _, v := range answer.Message.GetInstances() {
			if !v.GetLate() {
				continue
			}
			f, _, err := a.connect(s)
			if err != nil {
				return err
			}
			defer f.Close()
			console := fleet.Call(ctx, f, []string{answer.Shard}, fleet.Client.GetInstanceConsole,
				&nstancev1.GetInstanceConsoleRequest{InstanceId: v.GetInstanceId(), Lines: explainedLines})[0]
			if console.Err != nil {
				fmt.Fprintf(w, "\nThe console of %s cannot be read: %s\n", v.GetInstanceId(),
					printable(console.Err.Message))
				return nil
			}
			fmt.Fprintf(w, "\nThe end of the console of %s:\n\n", v.GetInstanceId())
			writeConsole(w, console.Message)
			return nil
		}
	}
	return nil
}
