package admin

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

func (a *app) groupHistoryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "history GROUP", Short: "Show by what a group was scaled during the last day", Args: cobra.ExactArgs(1),
		Long: `Shows the sizes of a group with "scaling" during the last day, and the metrics that led to
them: a line for each change of the size, and otherwise one every five minutes. WANTED is
the size that the metrics asked for, before windows and steps. A server keeps only what it
saw while it led, so the history of a new leader begins with its leadership.`,
		Example: `  nstance-admin group history workers --shard us-west-2a
  nstance-admin group history workers --shard us-west-2a --output json | jq '.shards[].points[].size'`,
	}
	request := new(nstancev1.GetScalingHistoryRequest)
	return asks(a, cmd, scopeFlags(cmd), fleet.Client.GetScalingHistory, request, a.writeScalingHistories,
		&request.Group)
}

func (a *app) writeScalingHistories(w io.Writer, answers answers[*nstancev1.GetScalingHistoryResponse]) error {
	for i, answer := range answers {
		if answer.Err != nil {
			continue
		}
		if i > 0 {
			fmt.Fprintln(w)
		}
		h := answer.Message
		if len(h.GetPoints()) == 0 {
			fmt.Fprintf(w, "%s: no history: the group has no scaling, or its leader has just begun\n",
				printable(answer.Shard))
			continue
		}
		if since := fleet.ScalingSince(h, a.Now(), stamp); since != "" {
			fmt.Fprintln(w, printable(answer.Shard+": "+since))
		}
		runs := fleet.ScalingRuns(h)
		metrics := fleet.ScalingMetrics(runs)
		var rows [][]cell
		for n, run := range runs {
			if n > 0 {
				rows = append(rows, plain(slices.Repeat([]string{"…"}, 3+len(metrics))...))
			}
			for _, p := range run {
				row := []string{stamp(fleet.Time(p.GetAt())), num(p.GetSize()), num(p.GetWanted())}
				for _, m := range metrics {
					row = append(row, m.Text(p))
				}
				rows = append(rows, plain(row...))
			}
		}
		columns := []string{"TIME", "SIZE", "WANTED"}
		for _, m := range metrics {
			columns = append(columns, string(m))
		}
		if err := a.table(w, columns, rows); err != nil {
			return err
		}
	}
	return nil
}
