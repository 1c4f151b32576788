package admin

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

func (a *app) topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "top", Short: "Show shards and groups again and again", Args: cobra.NoArgs,
		Long: `Shows the status of all shards and their groups, and shows it again every two seconds
until the command is interrupted. On a terminal, the new status replaces the one before.`,
		Example: `  nstance-admin top
  nstance-admin top --shard us-west-2a --interval 10s`,
	}
	s := scopeFlags(cmd)
	var interval time.Duration
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "time until the status is shown again")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < time.Second {
			return usagef("--interval %s is less than a second", interval)
		}
		if s.shard == "" && a.Getenv(envShard) == "" {
			s.all = true
		}
		return a.top(cmd.Context(), s, interval)
	}
	return cmd
}

// top prints the state of the shards every interval until ctx ends. For a shard that does not answer, it prints the
// error.
func (a *app) top(ctx context.Context, s *scope, interval time.Duration) error {
	f, shards, err := a.connect(s)
	if err != nil {
		return err
	}
	defer f.Close()
	for ctx.Err() == nil {
		status := fleet.Call(ctx, f, shards, fleet.Client.GetShardStatus, &nstancev1.GetShardStatusRequest{})
		groups := fleet.Call(ctx, f, shards, fleet.Client.ListGroups, &nstancev1.ListGroupsRequest{})
		if ctx.Err() != nil {
			break
		}
		if isTerminal(a.Stdout) {
			fmt.Fprint(a.Stdout, "\x1b[H\x1b[2J")
		}
		if err := a.line("%s", a.style.out.dim(stamp(a.Now()))); err != nil {
			return err // the reader has closed the output
		}
		for _, answer := range status {
			if answer.Err != nil {
				fmt.Fprintf(a.Stdout, "%s %s\n", a.style.out.bad("shard "+answer.Shard+":"),
					printable(answer.Err.Message))
			}
		}
		if err := a.writeStatus(a.Stdout, status); err != nil {
			return err
		}
		fmt.Fprintln(a.Stdout)
		if err := a.writeGroups(a.Stdout, groups); err != nil {
			return err
		}
		if err := a.sleep(ctx, interval); err != nil {
			break // interrupted
		}
	}
	return nil
}

func (a *app) uiCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ui", Short: "Open the web page in a browser", Args: cobra.NoArgs,
		Long: `Serves the web page of "nstance-admin serve" to this machine only, on a free port, until
the command is interrupted. It opens the page in the browser that $BROWSER names, or else
in the system's default browser.`,
		Example: `  nstance-admin ui
  nstance-admin ui --no-browser     # only print the address`,
	}
	var quiet bool
	cmd.Flags().BoolVar(&quiet, "no-browser", false, "do not open a browser")
	s := new(scope)
	s.reach(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.serve(cmd.Context(), s, serveOptions{bind: "127.0.0.1:0", opened: func(url string) {
			_ = a.line("%s", url)
			if quiet {
				return
			}
			opener := map[string]string{"darwin": "open"}[runtime.GOOS]
			opener = cmp.Or(a.Getenv("BROWSER"), opener, "xdg-open")
			//nolint:gosec // the user chooses the program
			if err := exec.CommandContext(cmd.Context(), opener, url).Start(); err != nil {
				a.note("The browser does not open (%v): open the address yourself.", err)
			}
		}})
	}
	return cmd
}
