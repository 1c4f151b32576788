package admin

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// versions holds the versions of the leader and the agents of one shard.
type versions struct {
	fleet.Outcome
	Leader string `json:"leader,omitempty"`
	// Agents counts the instances by the version of their agents. It leaves out instances whose agents have not
	// reported a version.
	Agents map[string]int `json:"agents,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Long: `Prints the version of this program. With --all, also prints the versions of the leaders
and agents of every shard.`,
		Example: `  nstance-admin version --all`,
	}
	s := new(scope)
	var all bool
	cmd.Flags().BoolVar(&all, "all", false, "also ask every shard for the versions of its leader and agents")
	s.reach(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.line("nstance-admin %s", a.version); err != nil || !all {
			return err
		}
		s.all = true
		call := func(f *fleet.Fleet, ctx context.Context, shards []string) []versions {
			return versionsOf(
				fleet.Call(ctx, f, shards, fleet.Client.GetShardStatus, &nstancev1.GetShardStatusRequest{}),
				fleet.Call(ctx, f, shards, fleet.Client.ListInstances, &nstancev1.ListInstancesRequest{}))
		}
		return askWith(cmd.Context(), a, s, "table", "asking", call, a.writeVersions)
	}
	return cmd
}

// versionsOf returns the versions of the leader and the agents in each shard, from two lists of answers. Both lists
// have the same shards in the same order.
func versionsOf(statuses answers[*nstancev1.GetShardStatusResponse],
	instances answers[*nstancev1.ListInstancesResponse]) []versions {
	var out []versions
	for n, status := range statuses {
		v := versions{Outcome: status.Outcome, Agents: map[string]int{}}
		if v.Err == nil {
			v.Leader, v.Err = status.Message.GetVersion(), instances[n].Err
		}
		for _, i := range instances[n].Message.GetInstances() {
			if version := i.GetAgentVersion(); version != "" {
				v.Agents[version]++
			}
		}
		out = append(out, v)
	}
	return out
}

func (a *app) writeVersions(w io.Writer, answers []versions) error {
	var rows [][]cell
	for _, v := range answers {
		if v.Err != nil {
			continue
		}
		var agents []string
		for _, version := range slices.Sorted(maps.Keys(v.Agents)) {
			agents = append(agents, fmt.Sprintf("%s (%d)", version, v.Agents[version]))
		}
		row := plain(v.Shard, v.Leader, strings.Join(agents, ", "))
		if v.Leader != a.version {
			row[1].paint = a.style.out.warn
		}
		rows = append(rows, row)
	}
	return a.table(w, []string{"SHARD", "LEADER", "AGENTS"}, rows)
}
