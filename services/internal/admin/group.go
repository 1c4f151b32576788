package admin

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

func list(names []string) string { return strings.Join(names, ", ") }

func (a *app) groupCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "group", Short: "List, scale, change, roll, create and delete groups",
		Long: `A group has a template, from which its VMs are made, and a size: the number of VMs that the
leader keeps running. Static groups come from the shard's configuration. Dynamic groups are
made with "group create" or by an operator. You can change the size, the instance type and
the variables of a static group with commands. Every other change of a static group needs a
new configuration.

The commands of "group" see only groups of the tenant for which the identity in use was
registered.`}
	cmd.AddCommand(a.groupListCommand(), a.groupDescribeCommand(), a.groupHistoryCommand(), a.groupScaleCommand(),
		a.groupWaitCommand(), a.groupCreateCommand(), a.groupSetCommand(), a.groupResetCommand(),
		a.groupDeleteCommand(), a.groupPauseCommand(), a.groupResumeCommand(), a.groupRollCommand())
	return cmd
}

func (a *app) groupListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the groups", Args: cobra.NoArgs,
		Long: "Lists the groups, each with the number of desired, existing and healthy instances. If a\ngroup does " +
			"not have its size, the list shows the reason.",
		Example: `  nstance-admin group list --all-shards
  nstance-admin group list --shard us-west-2a --output json | jq '.shards[].groups[].group'`,
	}
	return asks(a, cmd, readFlags(cmd), fleet.Client.ListGroups, &nstancev1.ListGroupsRequest{}, a.writeGroups)
}

// writeGroups writes a table of the groups of several shards.
func (a *app) writeGroups(w io.Writer, answers answers[*nstancev1.ListGroupsResponse]) error {
	var rows [][]cell
	for _, answer := range answers {
		for _, g := range answer.Message.GetGroups() {
			row := a.groupRow(answer.Shard, g)
			if answer.LastKnown != nil { // only a leader knows how many are healthy now
				row[4] = cell{text: "?"}
			}
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return a.none(fleet.Failed(answers), "There are no groups.")
	}
	return a.table(w, []string{"*SHARD", "GROUP", "SIZE", "ACTUAL", "HEALTHY", "+TEMPLATE",
		"+TYPE", "+POOL", "ORIGIN", "NOTE"}, rows)
}

// none prints a text that says that nothing was found. It prints nothing if a shard failed.
func (a *app) none(failed []*fleet.Error, text string) error {
	if len(failed) == 0 {
		a.note("%s", text)
	}
	return nil
}

func (a *app) groupRow(shard string, g *nstancev1.GroupStatus) []cell {
	settings := config.ReadSettings(g.GetMergedJson())
	row := plain(shard, g.GetGroup(), num(g.GetSize()), num(g.GetActualSize()), num(g.GetHealthy()), settings.Template,
		settings.InstanceType, settings.SubnetPool, origin(g), a.listNote(g))
	if g.GetActualSize() != g.GetSize() {
		row[3].paint = a.style.out.warn
	}
	if g.GetHealthy() < g.GetSize() {
		row[4].paint = a.style.out.warn
	} else {
		row[4].paint = a.style.out.good
	}
	return row
}

func origin(g *nstancev1.GroupStatus) string {
	switch {
	case g.GetIsStatic() && g.GetOverridden():
		return "static, changed"
	case g.GetIsStatic():
		return "static"
	}
	return "dynamic"
}

// listNote is note, with the spares and the fields that operators have set.
func (a *app) listNote(g *nstancev1.GroupStatus) string {
	var parts []string
	if size := fleet.SizeText(g, a.Now()); size != num(g.GetSize()) {
		parts = append(parts, "size "+size)
	}
	if text := fleet.SparesText(g); text != "" {
		parts = append(parts, "spares: "+text)
	}
	parts = append(parts, fleet.OverrideTexts(g, a.Now())...)
	if text := note(g); text != "" {
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func note(g *nstancev1.GroupStatus) string {
	if g.GetDeleting() {
		return strings.TrimSuffix("being deleted; "+fleet.WaitText(g), "; ")
	}
	return fleet.WaitText(g)
}

// outdated counts the instances that a rollout replaces.
func outdated(g *nstancev1.GroupStatus) string {
	if g.GetOutdated() == 0 {
		return ""
	}
	return count(g.GetOutdated(), "instance")
}

func num[N uint32 | uint64 | int](n N) string { return fmt.Sprint(n) }

func (a *app) groupDescribeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "describe [GROUP]", Aliases: []string{"status"}, Short: "Describe one group, or all",
		Args: cobra.MaximumNArgs(1),
		Long: "Describes groups in full: their instances, and all settings as they apply after the leader\n" +
			"has merged the group with its template and the shard. A setting that nobody has set is\n" +
			"marked as a default.",
		Example: `  nstance-admin group describe workers --shard us-west-2a
  nstance-admin group describe --all-shards --output yaml`,
	}
	request := new(nstancev1.ListGroupsRequest)
	return asks(a, cmd, readFlags(cmd), fleet.Client.ListGroups, request, a.describeGroups, &request.Group)
}

func (a *app) describeGroups(w io.Writer, answers answers[*nstancev1.ListGroupsResponse]) error {
	first := true
	for _, answer := range answers {
		for _, g := range answer.Message.GetGroups() {
			if !first {
				fmt.Fprintln(w)
			}
			first = false
			if err := writeFacts(w, a.style.out, a.groupFacts(answer.Shard, g, answer.LastKnown != nil)); err != nil {
				return err
			}
			if settings := settingFacts(g); len(settings) > 0 {
				fmt.Fprintln(w, "Settings:")
				if err := writeFacts(w, a.style.out, settings); err != nil {
					return err
				}
			}
		}
	}
	if first {
		return a.none(fleet.Failed(answers), "There are no groups.")
	}
	return nil
}

func (a *app) groupFacts(shard string, g *nstancev1.GroupStatus, lastKnown bool) []fact {
	desired := strings.Replace(fleet.SizeText(g, a.Now()), num(g.GetSize()), num(g.GetSize())+" desired", 1)
	size := fmt.Sprintf("%s, %d actual, %d healthy", desired, g.GetActualSize(), g.GetHealthy())
	if lastKnown {
		size = fmt.Sprintf("%s, %d recorded; only a leader knows how many are healthy", desired, g.GetActualSize())
	}
	if n := g.GetPreserved(); n > 0 {
		size += fmt.Sprintf(", and %d preserved", n)
	}
	return []fact{
		{"Group", g.GetGroup()}, {"Shard", shard}, {"Origin", origin(g)}, {"Size", size},
		{"Spares", fleet.SparesText(g)}, {"Changed", strings.Join(fleet.OverrideTexts(g, a.Now()), "; ")},
		{"Scaling", fleet.ScalingText(g.GetScaling(), a.Now())}, {"Outdated", outdated(g)},
		{"Note", note(g)}, {"Kind", g.GetKind()},
		{"Arch", g.GetArch()},
		{"ETag", g.GetEtag()}, {"Runtime hash", g.GetRuntimeHash()}, {"Infra hash", g.GetInfraHash()},
		{"Instances", list(g.GetInstanceIds())}, {"Provider IDs", list(g.GetProviderIds())},
	}
}

// settingFacts returns all settings of a group that are in force, one for each path.
func settingFacts(g *nstancev1.GroupStatus) []fact {
	var facts []fact
	settings := fleet.SettingsByPath(g)
	for _, path := range slices.Sorted(maps.Keys(settings)) {
		text := cmp.Or(settings[path], `""`)
		within := func(of string) bool {
			return path == of || strings.HasPrefix(path, of+".") || strings.HasPrefix(path, of+"[")
		}
		if slices.ContainsFunc(g.GetDefaults(), within) {
			text += "   (default)"
		}
		facts = append(facts, fact{"  " + path, text})
	}
	return facts
}

// lines returns a function that prints the result of a change in each shard, one line per shard. It skips
// shards that failed.
func lines[T fleet.Result](line func(T) string) func(io.Writer, []T) error {
	return func(w io.Writer, answers []T) error {
		for _, answer := range answers {
			if answer.Of().Err == nil {
				fmt.Fprintln(w, printable(line(answer)))
			}
		}
		return nil
	}
}

func (a *app) groupDeleteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete GROUP", Short: "Delete a dynamic group", Args: cobra.ExactArgs(1),
		Long: `Deletes a dynamic group: the leader drains and terminates its instances. To delete a static
group, remove it from the configuration. To give a static group the values of the
configuration again, use "group reset".`,
		Example: `  nstance-admin group delete batch --shard us-west-2a --yes`,
	}
	flags := changeFlags(cmd, confirmFlags, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		line := func(answer fleet.Answer[*nstancev1.DeleteGroupResponse]) string {
			return fmt.Sprintf("%s: group %s is being deleted", answer.Shard, args[0])
		}
		return change(cmd, a, flags, "deleting in", fleet.Client.DeleteGroup,
			&nstancev1.DeleteGroupRequest{Group: args[0]}, lines(line))
	}
	return cmd
}

func (a *app) groupPauseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pause GROUP", Short: "Stop the rollout of a group", Args: cobra.ExactArgs(1),
		Long: `Pauses the rollout of a group: the leader begins no more replacements of instances that are
outdated or older than eligible_age. It finishes replacements that are under way. It still
replaces lost and unhealthy instances, and the replacements get the new configuration. The
pause also holds under a new leader, until "group resume" ends it.`,
		Example: "  nstance-admin group pause workers --shard us-west-2a",
	}
	return rollout(a, cmd, changeFlags(cmd, dryRunFlag, false), fleet.Client.PauseGroup,
		func(group string) *nstancev1.PauseGroupRequest { return &nstancev1.PauseGroupRequest{Group: group} })
}

func (a *app) groupResumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "resume GROUP", Short: "Continue a rollout that is paused or halted", Args: cobra.ExactArgs(1),
		Long: `Ends the pause of a group's rollout. The command also restarts a rollout that halted
because instances with the new configuration failed. The count of failures then starts
from zero. A group that has returned to its last good configuration gets its present one
again.`,
		Example: "  nstance-admin group resume workers --shard us-west-2a",
	}
	return rollout(a, cmd, changeFlags(cmd, dryRunFlag, true), fleet.Client.ResumeGroup,
		func(group string) *nstancev1.ResumeGroupRequest { return &nstancev1.ResumeGroupRequest{Group: group} })
}

func (a *app) groupRollCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "roll GROUP", Short: "Replace all instances of a group", Args: cobra.ExactArgs(1),
		Long: `Replaces every instance of a group, in waves of up to max_surge instances, even if nothing
has changed. The group's settings for canaries, pauses and halts apply, as in any rollout.
Each call replaces all instances again. The command asks for a confirmation on a terminal,
and needs --yes elsewhere.`,
		Example: `  nstance-admin group roll workers --shard us-west-2a
  nstance-admin group roll workers --all-shards --yes`,
	}
	return rollout(a, cmd, changeFlags(cmd, confirmFlags, true), fleet.Client.RollGroup,
		func(group string) *nstancev1.RollGroupRequest { return &nstancev1.RollGroupRequest{Group: group} })
}

// rollout completes a command that pauses, resumes or starts the rollout of a group.
func rollout[Q proto.Message, M interface {
	proto.Message
	GetGroup() *nstancev1.GroupStatus
}](a *app, cmd *cobra.Command, flags *changer, method fleet.Method[Q, M],
	request func(group string) Q) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		line := func(answer fleet.Answer[M]) string {
			g, state := answer.Message.GetGroup(), "runs"
			if g.GetPaused() {
				state = "is paused"
			}
			return fmt.Sprintf("%s: group %s: the rollout %s, %d of %s outdated", answer.Shard, g.GetGroup(), state,
				g.GetOutdated(), count(g.GetActualSize(), "instance"))
		}
		err := change(cmd, a, flags, "asking", method, request(args[0]), lines(line))
		return a.thenWaitForGroup(cmd.Context(), flags, args[0], err)
	}
	return cmd
}

func (a *app) groupScaleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "scale GROUP SIZE", Short: "Change how many instances a group should have", Args: cobra.ExactArgs(2),
		Long: `Changes only the size of a group. If somebody changes other settings of the group at the
same time, these changes remain. A static group keeps the size until the configuration has
another one, until the time of --until, or until "group reset". With --pin, it also keeps
the size when the configuration changes. A group that the leader scales by its load goes on
from the size, unless there is --until or --pin. For several shards, add one of two flags.
With --per-shard, the group gets SIZE in each shard. With --total, SIZE is divided evenly
among the shards that have the group.

With +N or -N, the size grows or shrinks by N instances from what it is. No change that
somebody else makes at the same time is lost.

If the new size is smaller, the leaders delete instances. In this case, "group scale" asks
for a confirmation on a terminal, and needs --yes elsewhere. With --dry-run, it shows which
instances the leaders would delete, and changes nothing.

"group scale" returns when the new size is stored; "nstance-admin events" shows the
effects. With --wait, it returns when the group has this size and all its instances are
healthy.`,
		Example: `  nstance-admin group scale workers 5 --shard us-west-2a --wait
  nstance-admin group scale workers +2 --shard us-west-2a
  nstance-admin group scale workers 9 --all-shards --total
  nstance-admin group scale workers 8 --until 2h --shard us-west-2a
  nstance-admin group scale workers 0 --all-shards --per-shard --yes`,
	}
	var total, perShard bool
	cmd.Flags().BoolVar(&total, "total", false, "with several shards: SIZE is the sum over all of them")
	cmd.Flags().BoolVar(&perShard, "per-shard", false, "with several shards: SIZE is the size in each of them")
	cmd.MarkFlagsMutuallyExclusive("total", "per-shard")
	var pin bool
	var until time.Duration
	cmd.Flags().BoolVar(&pin, "pin", false, pinHelp)
	cmd.Flags().DurationVar(&until, "until", 0,
		"time after which a static group has its configured size again, such as 2h")
	flags := changeFlags(cmd, confirmFlags, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, confirm := flags.scope, flags.confirm
		size, err := strconv.ParseInt(args[1], 10, 32)
		if err != nil {
			return usageOf(cmd, fmt.Errorf("size %q is not a number of instances, such as 5, +2 or -2", args[1]))
		}
		by := strings.ContainsAny(args[1], "+-")
		switch {
		case by && total:
			return &usageError{err: fmt.Errorf("--total needs a size, and %s is a change of it", args[1]),
				hint: "add --per-shard for this change in each shard, or give the new sum"}
		case by && s.all && !perShard:
			return &usageError{err: fmt.Errorf("is %s the change in each of several shards?", args[1]),
				hint: "add --per-shard, or name one shard with --shard"}
		case s.all && !total && !perShard && len(shardNames(s.servers)) > 1:
			return &usageError{err: fmt.Errorf("is %s the size in each of %s, or in all together?", args[1],
				count(len(shardNames(s.servers)), "shard")), hint: "add --per-shard or --total"}
		}
		scaling := fleet.Scaling{Group: args[0], Size: int(size), By: by, Total: total, Pin: pin}
		if cmd.Flags().Changed("until") {
			if until <= 0 {
				return usageOf(cmd, fmt.Errorf("--until %s is not more than zero", until))
			}
			scaling.Until = a.Now().Add(until)
		}
		if !confirm.yes && !confirm.dryRun {
			smaller, err := a.makesSmaller(cmd.Context(), s, scaling)
			if err != nil {
				return err
			}
			confirm.yes = !smaller
		}
		err = a.edit(cmd, flags, "scaling in", scaling, func(answer fleet.Changed) string {
			g := answer.Message.GetGroup()
			text := fmt.Sprintf("%s: group %s: size %d → %s, %d there", answer.Shard, g.GetGroup(),
				answer.Before.GetSize(), fleet.SizeText(g, a.Now()), g.GetActualSize())
			if g.GetScaling() != nil && !pin && until == 0 {
				text += "; the leader scales on from there (to keep the size, add --until or --pin)"
			}
			return text
		})
		return a.thenWaitForGroup(cmd.Context(), flags, args[0], err)
	}
	return cmd
}

// settings are the flags that describe a group or a change of one.
type settings struct {
	file       string
	set, unset []string
}

const settingsHelp = `The settings are those of a group in the shard's configuration, which are listed in
docs/reference/configuration.md. With --file, they come from a file: JSON, in which comments
and trailing commas are allowed, and null removes the group's own value. With --set, they
come from the command line as PATH=VALUE, such as rollout.canary=1 or vars.queue=high. A
value that is not a text is JSON, such as instance_types='["m7g.large", "m6g.large"]'. --set
and --unset apply after --file.`

// settingsFlags adds the flags to a command.
func settingsFlags(cmd *cobra.Command) *settings {
	s := new(settings)
	cmd.Flags().StringVar(&s.file, "file", "", "file with the settings, or - for standard input")
	cmd.Flags().StringArrayVar(&s.set, "set", nil, "a setting, as PATH=VALUE; may be repeated")
	_ = cmd.MarkFlagFilename("file", "json", "jsonc")
	return s
}

// patch returns the settings as a patch.
func (a *app) patch(cmd *cobra.Command, s *settings) (config.Patch, error) {
	var patch config.Patch
	if s.file != "" {
		body, err := a.readInput(s.file, config.MaxSize)
		if err != nil {
			return patch, fmt.Errorf("read the settings: %w", err)
		}
		var problems config.Problems
		if patch, problems = config.ParsePatch(s.file, body); len(problems.Errors()) > 0 {
			for _, p := range problems {
				a.note("%s", p)
			}
			return patch, invalid(s.file, problems)
		}
	}
	for _, text := range s.set {
		path, value, ok := strings.Cut(text, "=")
		if !ok {
			return patch, usageOf(cmd, fmt.Errorf("--set %s: want PATH=VALUE, such as rollout.canary=1", text))
		}
		var err error
		if patch, err = patch.Set(path, value); err != nil {
			return patch, usageOf(cmd, fmt.Errorf("--set %s: %w", text, err))
		}
	}
	for _, path := range s.unset {
		var err error
		if patch, err = patch.Unset(path); err != nil {
			return patch, usageOf(cmd, fmt.Errorf("--unset %s: %w", path, err))
		}
	}
	checked, problems := config.ParsePatch("", []byte(patch.JSON()))
	if errs := problems.Errors(); len(errs) > 0 {
		return patch, usageOf(cmd, errors.New(errs.Brief()))
	}
	return checked, nil
}

func (a *app) groupCreateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "create GROUP --template TEMPLATE", Short: "Create a dynamic group", Args: cobra.ExactArgs(1),
		Long: "Creates a dynamic group from a template of the shard's configuration. If you leave out a\n" +
			"setting, the group takes it from the template.\n\n" + settingsHelp,
		Example: `  nstance-admin group create batch --template worker --size 3 --shard us-west-2a
  nstance-admin group create batch --template worker --set vars.queue=high --set rollout.canary=1
  nstance-admin group create batch --file batch.jsonc --all-shards`,
	}
	given := settingsFlags(cmd)
	var template, size string
	cmd.Flags().StringVar(&template, "template", "", "template of the shard's configuration; short for --set template=")
	cmd.Flags().StringVar(&size, "size", "", "how many instances there should be; short for --set size=")
	flags := changeFlags(cmd, dryRunFlag, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for name, value := range map[string]string{"template": template, "size": size} {
			if cmd.Flags().Changed(name) {
				given.set = append(given.set, name+"="+value)
			}
		}
		patch, err := a.patch(cmd, given)
		if err != nil {
			return err
		}
		if spec, err := patch.Apply(config.GroupSpec{}); err == nil && spec.Template == "" {
			return usageOf(cmd, errors.New("--template is missing"))
		}
		line := func(answer fleet.Answer[*nstancev1.UpsertGroupResponse]) string {
			return fmt.Sprintf("%s: group %s created with size %d", answer.Shard, answer.Message.GetGroup().GetGroup(),
				answer.Message.GetGroup().GetSize())
		}
		return change(cmd, a, flags, "creating in", fleet.Client.UpsertGroup,
			&nstancev1.UpsertGroupRequest{Group: args[0], Patch: patch.JSON(), MustCreate: true}, lines(line))
	}
	return cmd
}

func (a *app) groupSetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "set GROUP", Short: "Change settings of a group", Args: cobra.ExactArgs(1),
		Long: "Changes settings of a group, and keeps the others. Of a static group, only these can be\nchanged: " +
			strings.Join(config.OperatorFields(), ", ") + ".\n\n" + settingsHelp + `

In a static group, a changed value in the configuration ends a value that was set with
this command. To end it earlier, use "group reset". To keep it, add --pin.

A change may replace the instances of the group, or delete some. So the command asks for a
confirmation on a terminal, and needs --yes elsewhere.`,
		Example: `  nstance-admin group set workers --set instance_type=m7g.large --shard us-west-2a
  nstance-admin group set batch --set rollout.canary=1 --unset purchase --all-shards --yes`,
	}
	given := settingsFlags(cmd)
	cmd.Flags().StringArrayVar(&given.unset, "unset", nil,
		"PATH of a setting that the group then takes from its template again; may be repeated")
	var pin bool
	cmd.Flags().BoolVar(&pin, "pin", false, pinHelp)
	flags := changeFlags(cmd, confirmFlags, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		patch, err := a.patch(cmd, given)
		if err != nil {
			return err
		}
		if patch.Empty() {
			return usageOf(cmd, errors.New("there is nothing to change: add --set, --unset or --file"))
		}
		line := func(answer fleet.Answer[*nstancev1.UpsertGroupResponse]) string {
			g := answer.Message.GetGroup()
			return fmt.Sprintf("%s: group %s is changed, %d of %s outdated", answer.Shard, g.GetGroup(),
				g.GetOutdated(), count(g.GetActualSize(), "instance"))
		}
		err = change(cmd, a, flags, "changing in", fleet.Client.UpsertGroup,
			&nstancev1.UpsertGroupRequest{Group: args[0], Patch: patch.JSON(), MustExist: true, Pin: &pin}, lines(line))
		return a.thenWaitForGroup(cmd.Context(), flags, args[0], err)
	}
	return cmd
}
