package admin

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// completionTime is the time limit for all calls to servers during one shell completion.
const completionTime = 3 * time.Second

// complete adds shell completion for the names of shards, groups, instances and contexts to all commands that take
// them.
func (a *app) complete(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		a.complete(sub)
	}
	const no = cobra.ShellCompDirectiveNoFileComp
	if cmd.Flag("shard") != nil {
		// This call fails only if the flag already has a completion function.
		_ = cmd.RegisterFlagCompletionFunc("shard", func(cmd *cobra.Command, _ []string, _ string) ([]string,
			cobra.ShellCompDirective) {
			return a.shardNames(flagText(cmd, "servers")), no
		})
	}
	if cmd.Flag("group") != nil {
		_ = cmd.RegisterFlagCompletionFunc("group", func(cmd *cobra.Command, _ []string, _ string) ([]string,
			cobra.ShellCompDirective) {
			return a.groupNames(cmd), no
		})
	}
	names := map[string]func(*cobra.Command) []string{"GROUP": a.groupNames, "[GROUP]": a.groupNames,
		"INSTANCE": a.instanceNames, "CONTEXT": a.contextNames}[firstArgument(cmd)]
	if names == nil {
		return
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, no
		}
		return names(cmd), no
	}
}

// firstArgument returns the name of a command's first argument.
func firstArgument(cmd *cobra.Command) string {
	if fields := strings.Fields(cmd.Use); len(fields) > 1 {
		return fields[1]
	}
	return ""
}

func flagText(cmd *cobra.Command, name string) string {
	if flag := cmd.Flag(name); flag != nil {
		return flag.Value.String()
	}
	return ""
}

func (a *app) shardNames(servers string) (names []string) {
	saved, err := a.currentContext()
	if err != nil {
		return nil
	}
	known, err := endpoints.Parse(cmp.Or(servers, a.Getenv(envServers), saved.Servers))
	if err != nil {
		return nil
	}
	for _, shard := range known {
		names = append(names, shard.Name)
	}
	return names
}

// withShards calls `do` for the shards that the command line selects so far. If the command line selects none,
// withShards passes all known shards.
func (a *app) withShards(cmd *cobra.Command, do func(context.Context, *fleet.Fleet, []string)) {
	s := scopeOf(cmd)
	s.timeout = completionTime
	f, err := a.fleet(s)
	if err != nil {
		return
	}
	defer f.Close()
	shards, err := a.shards(s, f)
	if err != nil {
		shards = f.Shards()
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	do(ctx, f, shards)
}

func (a *app) groupNames(cmd *cobra.Command) (names []string) {
	a.withShards(cmd, func(ctx context.Context, f *fleet.Fleet, shards []string) {
		for _, answer := range fleet.Call(ctx, f, shards, fleet.Client.ListGroups, &nstancev1.ListGroupsRequest{}) {
			for _, g := range answer.Message.GetGroups() {
				names = append(names, g.GetGroup())
			}
		}
	})
	slices.Sort(names)
	return slices.Compact(names)
}

func (a *app) instanceNames(cmd *cobra.Command) (names []string) {
	a.withShards(cmd, func(ctx context.Context, f *fleet.Fleet, shards []string) {
		for _, answer := range fleet.Call(ctx, f, shards, fleet.Client.ListInstances,
			&nstancev1.ListInstancesRequest{}) {
			for _, i := range answer.Message.GetInstances() {
				names = append(names, i.GetInstanceId()+"\t"+i.GetGroup()+" "+i.GetHealth())
			}
		}
	})
	slices.Sort(names)
	return slices.Compact(names)
}

func (a *app) contextNames(*cobra.Command) (names []string) {
	file, _ := a.readContexts() // without a file nothing completes
	for name := range file.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
