package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/clusterstate"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/internal/infra"
)

// diagnosis is the result of doctor for one shard.
type diagnosis struct {
	Shard    string          `json:"shard"`
	Findings []finding       `json:"findings"`
	Consoles []infra.Console `json:"consoles"`
}

// finding is the result of one check.
type finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Result string `json:"result"`
	// Next says what to do about a result that is not OK.
	Next string `json:"next,omitempty"`
}

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor", Short: "Find out why a shard has no leader", Args: cobra.NoArgs,
		Long: `Reads a shard's configuration, its lock and the report of its newest server from the
bucket, and the console output of the servers' machines from the cloud: the boot log
and the last error. It needs neither a leader nor a running server. It changes nothing.`,
		Example: `  nstance-admin doctor --shard us-west-2a --storage-bucket my-bucket`,
	}
	var b bucketFlags
	var shard string
	var lines int
	cmd.Flags().StringVar(&shard, "shard", "", "the shard (required)")
	cmd.Flags().IntVar(&lines, "lines", 40, "how many lines of each console to show")
	b.add(cmd)
	f := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := ident.ValidateName(shard); err != nil {
			return usagef("--shard: %w", err)
		}
		bucket, ctx, cancel, err := b.open(cmd.Context(), false)
		if err != nil {
			return err
		}
		defer cancel()
		d := a.diagnose(ctx, clusterstate.New(clusterstate.Options{Cluster: bucket, Shard: bucket, ShardID: shard}),
			shard)
		for i := range d.Consoles {
			d.Consoles[i].Output = lastLines(d.Consoles[i].Output, lines)
		}
		if err := a.show(*f, d, func(w io.Writer) error { return a.writeDiagnosis(w, d) }); err != nil {
			return err
		}
		bad := 0
		for _, finding := range d.Findings {
			if !finding.OK {
				bad++
			}
		}
		if bad > 0 {
			return fmt.Errorf("%d problems of shard %s", bad, shard)
		}
		return nil
	}
	return cmd
}

// diagnose makes all checks. A check that cannot be made is a finding.
func (a *app) diagnose(ctx context.Context, state *clusterstate.State, name string) diagnosis {
	d := diagnosis{Shard: name, Consoles: []infra.Console{}}
	shard, found := checkConfiguration(ctx, state, name)
	d.Findings = append(d.Findings, found, a.checkLeader(ctx, state, name), checkNewestServer(ctx, state))
	if shard == nil {
		return d
	}
	i := slices.IndexFunc(a.Clouds, func(c infra.Cloud) bool { return c.Name() == shard.Server.Provider.Kind })
	if i < 0 || a.Clouds[i].Consoles == nil {
		return d
	}
	found = finding{Check: "machines of servers"}
	var err error
	if d.Consoles, err = a.Clouds[i].Consoles(ctx, shard); err != nil {
		found.Result, found.Next = err.Error(), "check the credentials and their permissions"
	} else {
		found.OK, found.Result = true, fmt.Sprintf("%d, with their consoles below", len(d.Consoles))
	}
	d.Findings = append(d.Findings, found)
	return d
}

// checkConfiguration also returns the configuration, if it is valid.
func checkConfiguration(ctx context.Context, state *clusterstate.State, name string) (*config.Shard, finding) {
	found := finding{Check: "configuration"}
	body, _, err := state.ReadConfig(ctx, name)
	if err != nil {
		found.Result, found.Next = err.Error(), "apply it, or check --shard, the bucket and the credentials"
		return nil, found
	}
	shard, problems := config.ParseStored("config", body)
	if err := problems.Err(); err != nil {
		found.Result, found.Next = err.Error(), "correct it and apply it again"
		return nil, found
	}
	found.OK, found.Result = true, "valid"
	return shard, found
}

// checkLeader compares the lock's time with this machine's clock. The limit is generous, because clocks differ.
func (a *app) checkLeader(ctx context.Context, state *clusterstate.State, name string) finding {
	const next = "read the consoles of the servers' machines, and check that server_count is not 0"
	lock, _, err := state.ReadLock(ctx, name)
	switch age := a.Now().Sub(lock.RenewedAt).Round(time.Second); {
	case errors.Is(err, objstore.ErrNotFound):
		return finding{"leader", false, "no server has led the shard", next}
	case err != nil:
		return finding{"leader", false, err.Error(), "check the bucket and the credentials"}
	case lock.Released:
		return finding{"leader", false, lock.LeaderID + " has released the lock, and no server has taken it", next}
	case age > 2*lock.Lease()+time.Minute:
		return finding{"leader", false, fmt.Sprintf("%s renewed the lock %s ago, and no server has taken it",
			lock.LeaderID, age), next}
	}
	return finding{"leader", true, fmt.Sprintf("%s leads in term %d", lock.LeaderID, lock.Term), ""}
}

func checkNewestServer(ctx context.Context, state *clusterstate.State) finding {
	report, _, err := state.ReadServerReport(ctx)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return finding{"newest server", true, "no machine has reported about its server", ""}
	case err != nil:
		return finding{"newest server", false, err.Error(), "check the bucket and the credentials"}
	case report.Problem != "":
		return finding{"newest server", false, fmt.Sprintf("%s did not become ready, reported at %s: %s",
			report.Machine,
			stamp(report.ReportedAt), report.Problem), "correct the image or the settings, and apply again"}
	}
	return finding{"newest server", true, fmt.Sprintf("%s became ready at %s", report.Machine,
		stamp(report.ReportedAt)),
		""}
}

// writeDiagnosis writes a table of the findings, what to do about them, and the consoles.
func (a *app) writeDiagnosis(w io.Writer, d diagnosis) error {
	var rows [][]cell
	for _, f := range d.Findings {
		verdict := cell{text: "ok", paint: a.style.out.good}
		if !f.OK {
			verdict = cell{text: "problem", paint: a.style.out.bad}
		}
		rows = append(rows, append([]cell{verdict}, plain(f.Check, f.Result, f.Next)...))
	}
	if err := writeTable(w, a.style.out, []string{"", "CHECK", "RESULT", "NEXT"}, rows); err != nil {
		return err
	}
	for _, c := range d.Consoles {
		var b strings.Builder
		fmt.Fprintf(&b, "\nConsole of %s (%s):\n", printable(c.Machine), printable(c.State))
		for line := range strings.Lines(c.Output) {
			b.WriteString("  " + printable(strings.TrimRight(line, "\r\n")) + "\n")
		}
		if c.Output == "" {
			b.WriteString("  (none yet: a cloud may need minutes)\n")
		}
		if _, err := io.WriteString(w, b.String()); err != nil {
			return err
		}
	}
	return nil
}

// lastLines returns the last n lines of a text, with line feeds only.
func lastLines(text string, n int) string {
	text = strings.TrimRight(strings.ReplaceAll(text, "\r", ""), "\n")
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-max(n, 0)):], "\n")
}
