package admin

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show the leaders and the health of shards", Args: cobra.NoArgs,
		Long: `Shows a table with each shard's leader, heir, term and configuration, and its numbers of
groups, instances and connected agents. Below the table are the active errors. If the
leader refused a newer configuration, the reason is there too. Without --shard, the
command asks every shard.`,
		Example: `  nstance-admin status
  nstance-admin status --output json | jq '.shards[] | {shard, leader_id, errors}'`,
	}
	return asks(a, cmd, readFlags(cmd), fleet.Client.GetShardStatus, &nstancev1.GetShardStatusRequest{}, a.writeStatus)
}

func (a *app) writeStatus(w io.Writer, answers answers[*nstancev1.GetShardStatusResponse]) error {
	var rows [][]cell
	var notes []string
	for _, answer := range answers {
		if !answer.Answered() {
			continue
		}
		rows = append(rows, a.statusRow(answer))
		problems := answer.Message.GetProblems()
		for _, e := range answer.Message.GetErrors() {
			if e.GetKind() == "config" && len(problems) > 0 {
				continue // the alert has the first of the problems
			}
			about := e.GetKind()
			if e.GetGroup() != "" {
				about += " of group " + e.GetGroup()
			}
			notes = append(notes, fmt.Sprintf("%s: %s: %s", answer.Shard, about, e.GetMessage()))
		}
		for _, p := range problems {
			notes = append(notes, fmt.Sprintf("%s: refused configuration: %s", answer.Shard,
				strings.TrimPrefix(p.GetPath()+": "+p.GetMessage(), ": ")))
		}
	}
	if err := a.table(w, []string{"SHARD", "LEADER", "+TERM", "HEIR", "+LEASE LEFT", "CONFIG",
		"+GROUPS", "INSTANCES", "+CONNECTED", "ERRORS"}, rows); err != nil {
		return err
	}
	for n, note := range notes {
		if n == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, note)
	}
	return nil
}

func (a *app) statusRow(answer fleet.Answer[*nstancev1.GetShardStatusResponse]) []cell {
	s := answer.Message
	if answer.LastKnown != nil {
		row := plain(answer.Shard, "none", num(s.GetTerm()), "", "", "", num(s.GetGroups()), num(s.GetInstances()), "",
			num(len(s.GetErrors())))
		row[1].paint = a.style.out.bad
		return row
	}
	configuration := "applied"
	switch {
	case s.GetRefusedEtag() != "":
		configuration = "newer one refused"
	case s.GetConfigWaits() != "":
		configuration = "newer one waits"
	}
	row := plain(answer.Shard, s.GetLeaderId(), num(s.GetTerm()), cmp.Or(s.GetHeirId(), "none"), fleet.LeaseText(s),
		configuration, num(s.GetGroups()), num(s.GetInstances()), num(s.GetAgentsConnected()), num(len(s.GetErrors())))
	for n, wrong := range map[int]bool{3: s.GetHeirId() == "", 5: s.GetRefusedEtag() != "",
		9: len(s.GetErrors()) > 0} {
		if wrong {
			row[n].paint = a.style.out.warn
		}
	}
	return row
}

func (a *app) serverCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "server", Short: "List the servers of shards, and make a leader step down"}
	cmd.AddCommand(a.serverListCommand(), a.stepDownCommand())
	return cmd
}

func (a *app) serverListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the servers of shards", Args: cobra.NoArgs,
		Long:    "Lists the leader of each shard and the standbys that are connected to it.",
		Example: `  nstance-admin server list --all-shards`,
	}
	return asks(a, cmd, scopeFlags(cmd), fleet.Client.GetShardStatus, &nstancev1.GetShardStatusRequest{},
		a.writeServers)
}

func (a *app) writeServers(w io.Writer, answers answers[*nstancev1.GetShardStatusResponse]) error {
	var rows [][]cell
	for _, answer := range answers {
		if answer.Err != nil {
			continue
		}
		rows = append(rows, plain(answer.Shard, answer.Message.GetLeaderId(), "leader", answer.Message.GetVersion(),
			stamp(fleet.Time(answer.Message.GetLeaderSince()))))
		for _, id := range answer.Message.GetStandbyIds() {
			role := "standby"
			if id == answer.Message.GetHeirId() {
				role = "heir"
			}
			rows = append(rows, plain(answer.Shard, id, role, "", ""))
		}
	}
	return a.table(w, []string{"*SHARD", "SERVER", "ROLE", "VERSION", "LEADS SINCE"}, rows)
}

func (a *app) stepDownCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "step-down", Short: "Make the leader hand over to another server", Args: cobra.NoArgs,
		Long: `Makes the leader of a shard hand over to another server. The former leader then stays out
of the election for 15 s. If the shard has no other server, the former leader leads again
after this time. The command needs an identity with the role admin.`,
		Example: `  nstance-admin server step-down --shard us-west-2a`,
	}
	flags := changeFlags(cmd, confirmFlags, false)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return change(cmd, a, flags, "asking", fleet.Client.StepDown, &nstancev1.StepDownRequest{},
			lines(func(answer fleet.Answer[*nstancev1.StepDownResponse]) string {
				return fmt.Sprintf("%s: %s steps down, term %d ends; %s takes over", answer.Shard,
					answer.Message.GetLeaderId(), answer.Message.GetTerm(),
					cmp.Or(answer.Message.GetHeirId(), "another server"))
			}))
	}
	return cmd
}

func (a *app) orphansCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "orphans", Short: "List VMs without a record, and allow their termination",
		Long: `An orphan is a VM with the shard's tags but without a record in the bucket. The leader
terminates a few orphans without asking. Many orphans can mean a fault, such as a wrong
bucket, so the leader terminates them only after a person has confirmed them. After
"cluster restore", any number of orphans waits for the first confirmation.

The commands of "orphans" need an identity with the role admin. To make one, run "cluster
register-operator --role admin".`}
	cmd.AddCommand(a.orphansListCommand(), a.orphansConfirmCommand())
	return cmd
}

func (a *app) orphansListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List VMs without a record", Args: cobra.NoArgs,
		Example: `  nstance-admin orphans list --shard us-west-2a`}
	return asks(a, cmd, scopeFlags(cmd), fleet.Client.ListOrphans, &nstancev1.ListOrphansRequest{}, a.writeOrphans)
}

func (a *app) writeOrphans(w io.Writer, answers answers[*nstancev1.ListOrphansResponse]) error {
	var rows [][]cell
	waits := false
	for _, answer := range answers {
		for _, o := range answer.Message.GetOrphans() {
			rows = append(rows, plain(answer.Shard, o.GetProviderId(), o.GetInstanceId(), o.GetTenant(), o.GetGroup(),
				o.GetState(), stamp(fleet.Time(o.GetLaunchedAt()))))
		}
		waits = waits || answer.Message.GetNeedsConfirmation()
	}
	if len(rows) == 0 {
		return a.none(fleet.Failed(answers), "There are no orphans.")
	}
	if waits {
		a.note("The leader terminates none of them before nstance-admin orphans confirm.")
	}
	return a.table(w, []string{"*SHARD", "VM", "INSTANCE", "+TENANT", "GROUP", "+STATE", "+LAUNCHED"}, rows)
}

func (a *app) orphansConfirmCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "confirm VM...", Short: "Allow the leader to terminate the orphans of a shard",
		Args: cobra.MinimumNArgs(1),
		Long: `Allows the leader to terminate all orphans of a shard: its VMs without a record. As
arguments, give all VMs that "orphans list" shows. If the shard's orphans are no longer
exactly these VMs, the leader refuses this confirmation. The leader does not drain orphans
before it terminates them.`,
		Example: `  nstance-admin orphans confirm i-0a1b2c3d4e5f60718 i-1b2c3d4e5f6071829 --shard us-west-2a`}
	flags := changeFlags(cmd, confirmFlags, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if flags.scope.all {
			return usagef("--all-shards: confirm the orphans of one shard at a time")
		}
		return change(cmd, a, flags, "asking", fleet.Client.ConfirmOrphans,
			&nstancev1.ConfirmOrphansRequest{ProviderIds: args},
			lines(func(answer fleet.Answer[*nstancev1.ConfirmOrphansResponse]) string {
				return fmt.Sprintf("%s: %s may be terminated", answer.Shard,
					count(answer.Message.GetConfirmed(), "VM"))
			}))
	}
	return cmd
}

// confirmation holds the flags of commands that ask for a confirmation before they act.
type confirmation struct{ yes, dryRun bool }

func confirmFlags(cmd *cobra.Command) *confirmation {
	s := new(confirmation)
	cmd.Flags().BoolVar(&s.yes, "yes", false, "do not ask for a confirmation")
	cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "say what would be done, and do nothing")
	return s
}

// confirm asks on a terminal whether to continue. Without a terminal it continues only with --yes. In a dry run, it
// returns done = true, and the command must change nothing.
func (a *app) confirm(cmd *cobra.Command, s *confirmation, what string) (done bool, err error) {
	return a.confirmChange(cmd, s, true, what)
}

// confirmChange is like confirm, for commands that destroy something only in some cases. Without a terminal, the
// command needs --yes only if destructive is set.
func (a *app) confirmChange(cmd *cobra.Command, s *confirmation, destructive bool, what string) (done bool, err error) {
	switch {
	case s.dryRun:
		return true, a.line("Would do: %s", what)
	case s.yes, !destructive && !isTerminal(a.Stdin):
		return false, nil
	case !isTerminal(a.Stdin):
		return false, withoutTerminal(cmd)
	}
	if !strings.HasPrefix(what, "\n") { // no list
		what = " " + what + "."
	}
	fmt.Fprintf(a.Stderr, "This changes the cluster:%s\nGo on? Type yes: ", what)
	answer, err := a.readAnswer()
	if err == nil && answer != "yes" {
		err = errors.New("not confirmed: nothing was done")
	}
	return false, err
}

// withoutTerminal returns the error of a command that cannot ask for a confirmation.
func withoutTerminal(cmd *cobra.Command) error {
	return &usageError{err: errors.New(cmd.CommandPath() + " asks before it acts, and there is no terminal"),
		hint: "add --yes, or --dry-run to see what it would do"}
}

// readAnswer reads a line from standard input.
func (a *app) readAnswer() (string, error) {
	answer, err := bufio.NewReader(a.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	return strings.TrimSpace(answer), nil
}

func (a *app) topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "top", Short: "Show shards and groups again and again", Args: cobra.NoArgs,
		Long: `Shows the status of all shards and their groups, and shows it again every two seconds
until the command is interrupted. On a terminal, the new status replaces the one before.`,
		Example: `  nstance-admin top
  nstance-admin top --shard us-west-2a --interval 10s`,
	}
	s := readFlags(cmd)
	var interval time.Duration
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "time until the status is shown again")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < time.Second {
			return usagef("--interval %s is less than a second", interval)
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
	s.reader = cmd
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
