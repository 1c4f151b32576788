package admin

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

func (a *app) instanceCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "instance", Short: "List, describe, protect, create and delete instances",
		Long: `Instances are VMs. The leader creates and replaces the instances of a group. "instance
create" makes an additional, on-demand instance, which does not count towards the group's
size and stays until it is deleted.`}
	cmd.AddCommand(a.instanceListCommand(), a.instanceDescribeCommand(), a.instanceCreateCommand(),
		a.instanceDrainCommand(), a.instanceProtectCommand(), a.instanceDeleteCommand())
	return cmd
}

func (a *app) instanceListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the instances", Args: cobra.NoArgs,
		Example: `  nstance-admin instance list --all-shards
  nstance-admin instance list --group workers --output json | jq -r '.shards[].instances[].instance_id'`,
	}
	var group string
	cmd.Flags().StringVar(&group, "group", "", "only instances of this group")
	s, f := scopeFlags(cmd), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		call := func(f *fleet.Fleet, ctx context.Context, shards []string) []fleet.InstancesAnswer {
			return f.Instances(ctx, shards, group)
		}
		return ask(cmd.Context(), a, s, *f, "asking", call, func(w io.Writer, answers []fleet.InstancesAnswer) error {
			var rows [][]cell
			for _, answer := range answers {
				for _, i := range answer.Instances {
					rows = append(rows, a.instanceRow(answer.Shard, i))
				}
			}
			if len(rows) == 0 {
				return a.none(fleet.Failed(answers), "There are no instances.")
			}
			return writeTable(w, a.style.out, []string{"SHARD", "INSTANCE", "GROUP", "STATE", "HEALTH", "AGE", "TYPE",
				"ADDRESS", "PROVIDER ID", "NOTE"}, rows)
		})
	}
	return cmd
}

func (a *app) instanceRow(shard string, i fleet.Instance) []cell {
	row := plain(shard, i.ID, i.Group, i.State, i.Health, age(a.Now(), i.CreatedAt), i.InstanceType, address(i),
		i.ProviderID, instanceNote(i))
	switch i.Health {
	case "healthy":
		row[4].paint = a.style.out.good
	case "unhealthy", "silent":
		row[4].paint = a.style.out.bad
	default:
		row[4].paint = a.style.out.warn
	}
	return row
}

func address(i fleet.Instance) string {
	if i.IPv4 != "" {
		return i.IPv4
	}
	return i.IPv6
}

func instanceNote(i fleet.Instance) string {
	var notes []string
	for _, note := range []struct {
		holds bool
		text  string
	}{
		{i.OnDemand, "on demand"}, {i.Protected, "protected"}, {i.InfraDrift, outdatedNote(i)},
		{i.RuntimeDrift, "files to be pushed"},
		{i.DeleteReason != "", i.DeleteReason}, {i.HealthMessage != "", i.HealthMessage},
	} {
		if note.holds {
			notes = append(notes, note.text)
		}
	}
	return list(notes)
}

// outdatedNote says what will happen to an instance with an outdated configuration.
func outdatedNote(i fleet.Instance) string {
	if i.Protected {
		return "outdated"
	}
	return "to be replaced"
}

func (a *app) instanceDescribeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "describe INSTANCE", Aliases: []string{"show"}, Short: "Describe one instance",
		Args:    cobra.ExactArgs(1),
		Long:    "Describes one instance. With --all-shards, the command looks for it in every shard.",
		Example: `  nstance-admin instance describe wrk06bgm7733st2576nx5jht4ecjw --all-shards`,
	}
	s, f := scopeFlags(cmd), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := instanceID(cmd, args[0])
		if err != nil {
			return err
		}
		call := func(f *fleet.Fleet, ctx context.Context, shards []string) []fleet.InstanceAnswer {
			return fleet.Elsewhere(f.Instance(ctx, shards, id))
		}
		return ask(cmd.Context(), a, s, *f, "asking", call,
			eachInstance(func(w io.Writer, shard string, i fleet.Instance) error {
				return writeFacts(w, a.style.out, a.instanceFacts(shard, i))
			}))
	}
	return cmd
}

func instanceID(cmd *cobra.Command, text string) (ident.ID, error) {
	id, err := ident.ParseID(text)
	if err == nil && id.Prefix() == ident.OperatorPrefix {
		err = fmt.Errorf("%s is an operator's ID", text)
	}
	if err != nil {
		return ident.ID{}, usageOf(cmd, err)
	}
	return id, nil
}

func eachInstance(write func(w io.Writer, shard string, i fleet.Instance) error) func(io.Writer,
	[]fleet.InstanceAnswer) error {
	return func(w io.Writer, answers []fleet.InstanceAnswer) error {
		for _, answer := range answers {
			if answer.Err != nil {
				continue
			}
			if err := write(w, answer.Shard, *answer.Instance); err != nil {
				return err
			}
		}
		return nil
	}
}

func (a *app) instanceFacts(shard string, i fleet.Instance) []fact {
	now := a.Now()
	since := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return fmt.Sprintf("%s (%s ago)", stamp(t), age(now, t))
	}
	origin := "group's size"
	if i.OnDemand {
		origin = "on demand"
	}
	facts := []fact{
		{"Instance", i.ID}, {"Shard", shard}, {"Group", i.Group}, {"Origin", origin}, {"Template", i.Template},
		{"Kind", i.Kind},
		{"State", i.State}, {"Health", i.Health}, {"Health message", i.HealthMessage},
		{"Provider state", i.ProviderState}, {"Provider ID", i.ProviderID},
		{"Instance type", i.InstanceType}, {"Image", i.Image}, {"Zone", i.Zone}, {"Subnet", i.SubnetID},
		{"IPv4", i.IPv4}, {"IPv6", i.IPv6}, {"Host name", i.Hostname},
		{"Created", since(i.CreatedAt)}, {"Launched", since(i.LaunchedAt)}, {"Registered", since(i.RegisteredAt)},
		{"Last report", since(i.LastReportAt)},
		{"Delete reason", i.DeleteReason}, {"Delete by", stamp(i.DeleteDeadline)}, {"Deleted", since(i.DeletedAt)},
		{"Certificate ends", stamp(i.CertificateNotAfter)}, {"Agent", i.AgentVersion}, {"Note", drift(i)},
	}
	for _, c := range i.HealthChecks {
		facts = append(facts, fact{"Check " + c.Name, join(c.Status, c.Reason)})
	}
	if m := i.Metrics; m != nil {
		facts = append(facts, fact{"CPU", fmt.Sprintf("%.0f %%", m.CPU*100)},
			fact{"Memory", fmt.Sprintf("%d of %d MiB", m.MemoryUsedBytes>>20, m.MemoryTotalBytes>>20)})
	}
	return facts
}

func drift(i fleet.Instance) string {
	return instanceNote(fleet.Instance{InfraDrift: i.InfraDrift, RuntimeDrift: i.RuntimeDrift, Protected: i.Protected})
}

func (a *app) instanceCreateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "create GROUP", Short: "Create an on-demand instance of a group", Args: cobra.ExactArgs(1),
		Long: `Creates an on-demand instance: it is like the other instances of the group, but does not
count towards the group's size. It is not replaced if it fails, and stays until it is
deleted.

If you repeat "instance create" with the same --instance-id, no second instance is made.`,
		Example: `  nstance-admin instance create workers --shard us-west-2a --instance-type c7g.4xlarge
  nstance-admin instance create workers --vars job=42 --output json | jq -r '.shards[].instance.instance_id'`,
	}
	var text, instanceType string
	var vars map[string]string
	cmd.Flags().StringVar(&text, "instance-id", "",
		"the instance's ID, with the group's kind as prefix; made if not given")
	cmd.Flags().StringVar(&instanceType, "instance-type", "", "the provider's instance type instead of the group's")
	cmd.Flags().StringToStringVar(&vars, "vars", nil, "variables as k=v, which override the group's; may be repeated")
	s, f := scopeFlags(cmd), outputFlag(cmd)
	cmd.MarkFlagsMutuallyExclusive("instance-id", "all-shards")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var id ident.ID
		if text != "" {
			var err error
			if id, err = instanceID(cmd, text); err != nil {
				return err
			}
		}
		call := func(f *fleet.Fleet, ctx context.Context, shards []string) []fleet.InstanceAnswer {
			return f.CreateInstance(ctx, shards, args[0], id, instanceType, vars)
		}
		return ask(cmd.Context(), a, s, *f, "creating in", call, eachInstance(writeState))
	}
	return cmd
}
