package admin

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

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
		body, err := a.readInput(s.file)
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
	s, f := scopeFlags(cmd), outputFlag(cmd)
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
		return ask(cmd.Context(), a, s, *f, "creating in", fleet.Client.UpsertGroup, &nstancev1.UpsertGroupRequest{
			Group: args[0], Patch: patch.JSON(), MustCreate: true}, lines(line))
	}
	return cmd
}

func (a *app) groupSetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "set GROUP", Short: "Change settings of a group", Args: cobra.ExactArgs(1),
		Long: "Changes settings of a group, and keeps the others. Of a static group, only these can be\nchanged: " +
			strings.Join(config.OperatorFields(), ", ") + ".\n\n" + settingsHelp + `

A change may replace the instances of the group, or delete some. So the command asks for a
confirmation on a terminal, and needs --yes elsewhere.`,
		Example: `  nstance-admin group set workers --set instance_type=m7g.large --shard us-west-2a
  nstance-admin group set batch --set rollout.canary=1 --unset purchase --all-shards --yes`,
	}
	given := settingsFlags(cmd)
	cmd.Flags().StringArrayVar(&given.unset, "unset", nil,
		"PATH of a setting that the group then takes from its template again; may be repeated")
	s, f, patient, confirm := scopeFlags(cmd), outputFlag(cmd), waitFlags(cmd), confirmFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		patch, err := a.patch(cmd, given)
		if err != nil {
			return err
		}
		if patch.Empty() {
			return usageOf(cmd, errors.New("there is nothing to change: add --set, --unset or --file"))
		}
		what := "group " + args[0] + " of " + a.scopeText(s) + " gets " + patch.JSON()
		if done, err := a.confirm(cmd, confirm, what); done || err != nil {
			return err
		}
		line := func(answer fleet.Answer[*nstancev1.UpsertGroupResponse]) string {
			g := answer.Message.GetGroup()
			return fmt.Sprintf("%s: group %s is changed, %d of %d instances are outdated", answer.Shard, g.GetGroup(),
				g.GetOutdated(), g.GetActualSize())
		}
		err = ask(cmd.Context(), a, s, *f, "changing in", fleet.Client.UpsertGroup, &nstancev1.UpsertGroupRequest{
			Group: args[0], Patch: patch.JSON(), MustExist: true}, lines(line))
		return a.thenWaitForGroup(cmd.Context(), s, patient, args[0], err)
	}
	return cmd
}
