package admin

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

func (a *app) instanceCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "instance", Short: "List, describe, protect, release, create and delete instances",
		Long: `Instances are VMs. The leader creates and replaces the instances of a group. "instance
create" makes an additional, on-demand instance, which does not count towards the group's
size and stays until it is deleted.`}
	cmd.AddCommand(a.instanceListCommand(), a.instanceDescribeCommand(), a.instanceConsoleCommand(),
		a.instanceCreateCommand(), a.instanceDrainCommand(), a.instanceProtectCommand(), a.instanceReleaseCommand(),
		a.instanceDeleteCommand())
	return cmd
}

func (a *app) instanceListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the instances", Args: cobra.NoArgs,
		Example: `  nstance-admin instance list --all-shards
  nstance-admin instance list --all-shards --preserved
  nstance-admin instance list --group workers --output json | jq -r '.shards[].instances[].instance_id'`,
	}
	request := new(nstancev1.ListInstancesRequest)
	cmd.Flags().StringVar(&request.Group, "group", "", "only instances of this group")
	cmd.Flags().BoolVar(&request.Preserved, "preserved", false, "only instances that failed and are preserved")
	return asks(a, cmd, readFlags(cmd), fleet.Client.ListInstances, request, a.writeInstances)
}

func (a *app) writeInstances(w io.Writer, answers answers[*nstancev1.ListInstancesResponse]) error {
	var rows [][]cell
	for _, answer := range answers {
		for _, i := range answer.Message.GetInstances() {
			rows = append(rows, a.instanceRow(answer.Shard, i))
		}
	}
	if len(rows) == 0 {
		return a.none(fleet.Failed(answers), "There are no instances.")
	}
	return a.table(w, []string{"*SHARD", "INSTANCE", "GROUP", "+STATE", "HEALTH", "AGE", "+TYPE",
		"+ADDRESS", "+PROVIDER ID", "NOTE"}, rows)
}

func (a *app) instanceRow(shard string, i *nstancev1.InstanceStatus) []cell {
	health := i.GetHealth()
	if i.GetState() == "deleting" { // the last report of its agent no longer matters
		health = "deleting"
	}
	row := plain(shard, i.GetInstanceId(), i.GetGroup(), i.GetState(), health,
		age(a.Now(), fleet.Time(i.GetCreatedAt())), i.GetInstanceType(), cmp.Or(i.GetIpv4(), i.GetIpv6()),
		i.GetProviderId(), instanceNote(i))
	switch health {
	case "healthy", "asleep":
		row[4].paint = a.style.out.good
	case "unhealthy", "silent":
		row[4].paint = a.style.out.bad
	default:
		row[4].paint = a.style.out.warn
	}
	return row
}

func instanceNote(i *nstancev1.InstanceStatus) string {
	var notes []string
	for _, note := range []struct {
		holds bool
		text  string
	}{
		{i.GetOnDemand(), "on demand"}, {i.GetSpare(), "spare"}, {i.GetProtected(), "protected"},
		{i.GetInfraDrift(), outdatedNote(i)},
		{i.GetRuntimeDrift() && i.GetPreservedAt() == nil, "files to be pushed"},
		{i.GetPreservedAt() != nil, preservedNote(i)},
		{i.GetDeleteReason() != "", i.GetDeleteReason()}, {i.GetHealthMessage() != "", i.GetHealthMessage()},
	} {
		if note.holds {
			notes = append(notes, note.text)
		}
	}
	return list(notes)
}

// preservedNote says why a failed instance is preserved, and until when.
func preservedNote(i *nstancev1.InstanceStatus) string {
	if i.GetPreservedUntil() == nil {
		return "was preserved: " + i.GetPreserveReason()
	}
	return "preserved until " + stamp(i.GetPreservedUntil().AsTime()) + ": " + i.GetPreserveReason()
}

// outdatedNote says what will happen to an instance with an outdated configuration.
func outdatedNote(i *nstancev1.InstanceStatus) string {
	if i.GetProtected() || i.GetPreservedAt() != nil {
		return "outdated"
	}
	return "to be replaced"
}

func (a *app) instanceDescribeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "describe INSTANCE", Aliases: []string{"show"}, Short: "Describe one instance",
		Args: cobra.ExactArgs(1),
		Long: "Describes one instance.",
		Example: `  nstance-admin instance describe wrk06bgm7733st2576nx5jht4ecjw
  nstance-admin instance describe i-0abc123def456789a --shard us-west-2a`,
	}
	table := func(w io.Writer, answers answers[*nstancev1.GetInstanceStatusResponse]) (err error) {
		for _, answer := range answers {
			if answer.Answered() && err == nil {
				err = writeFacts(w, a.style.out, a.instanceFacts(answer.Shard, answer.Message.GetInstance()))
			}
		}
		return err
	}
	request := new(nstancev1.GetInstanceStatusRequest)
	return asks(a, cmd, readFlags(cmd), fleet.Client.GetInstanceStatus, request, table, &request.InstanceId)
}

func (a *app) instanceFacts(shard string, i *nstancev1.InstanceStatus) []fact {
	now := a.Now()
	since := func(t *timestamppb.Timestamp) string {
		if t == nil {
			return ""
		}
		return fmt.Sprintf("%s (%s ago)", stamp(t.AsTime()), age(now, t.AsTime()))
	}
	origin := "group's size"
	switch {
	case i.GetOnDemand():
		origin = "on demand"
	case i.GetSpare():
		origin = "spare"
	}
	facts := []fact{
		{"Instance", i.GetInstanceId()}, {"Shard", shard}, {"Group", i.GetGroup()}, {"Origin", origin},
		{"Template", i.GetTemplate()}, {"Kind", i.GetKind()}, {"State", i.GetState()}, {"Health", i.GetHealth()},
		{"Health message", i.GetHealthMessage()}, {"Provider state", i.GetProviderState()},
		{"Provider ID", i.GetProviderId()}, {"Instance type", i.GetInstanceType()}, {"Image", i.GetImage()},
		{"Zone", i.GetZone()}, {"Subnet", i.GetSubnetId()}, {"IPv4", i.GetIpv4()}, {"IPv6", i.GetIpv6()},
		{"Host name", i.GetHostname()}, {"Created", since(i.GetCreatedAt())}, {"Launched", since(i.GetLaunchedAt())},
		{"Registered", since(i.GetRegisteredAt())}, {"Became a member", since(i.GetPromotedAt())},
		{"Last report", since(i.GetLastReportAt())},
		{"Preserved", since(i.GetPreservedAt())}, {"Preserved until", stamp(fleet.Time(i.GetPreservedUntil()))},
		{"Failed because", i.GetPreserveReason()},
		{"Delete reason", i.GetDeleteReason()}, {"Delete by", stamp(fleet.Time(i.GetDeleteDeadline()))},
		{"Deleted", since(i.GetDeletedAt())}, {"Certificate ends", stamp(fleet.Time(i.GetCertificateNotAfter()))},
		{"Agent", i.GetAgentVersion()}, {"Note", drift(i)},
	}
	for _, c := range i.GetHealthChecks() {
		status := strings.ToLower(strings.TrimPrefix(c.GetStatus().String(), "STATUS_"))
		facts = append(facts, fact{"Check " + c.GetName(), join("  ", status, c.GetReason())})
	}
	if m := i.GetMetrics(); m != nil {
		facts = append(facts, fact{"CPU", fmt.Sprintf("%.0f %%", m.GetCpu()*100)},
			fact{"Memory", fmt.Sprintf("%d of %d MiB", m.GetMemoryUsedBytes()>>20, m.GetMemoryTotalBytes()>>20)})
	}
	for _, m := range i.GetScaling() {
		facts = append(facts, fact{"Scales by " + m.GetName(), fleet.NumberText(m)})
	}
	return facts
}

func drift(i *nstancev1.InstanceStatus) string {
	return instanceNote(&nstancev1.InstanceStatus{InfraDrift: i.GetInfraDrift(), RuntimeDrift: i.GetRuntimeDrift(),
		Protected: i.GetProtected()})
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
		if text != "" {
			if _, err := ident.ParseID(text); err != nil {
				return usageOf(cmd, err)
			}
		}
		return ask(cmd.Context(), a, s, *f, "creating in", fleet.Client.CreateInstance,
			&nstancev1.CreateInstanceRequest{Group: args[0], InstanceId: text, InstanceType: instanceType, Vars: vars},
			lines(stateLine[*nstancev1.CreateInstanceResponse]))
	}
	return cmd
}
