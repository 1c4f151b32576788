package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

const pinHelp = "keep the values in a static group when the configuration changes, until \"group reset\""

func (a *app) groupResetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "reset GROUP", Short: "Give a static group the values of the configuration again",
		Args: cobra.ExactArgs(1),
		Long: `Ends what operators have set in a static group, so that the values of the configuration
apply again. The revision that "group roll" has set stays, because another one would
replace all instances. A new size or type may delete or replace instances, so the command
asks for a confirmation on a terminal, and needs --yes elsewhere.`,
		Example: `  nstance-admin group reset workers --shard us-west-2a
  nstance-admin group reset workers --field size --all-shards --yes`,
	}
	var fields []string
	cmd.Flags().StringArrayVar(&fields, "field", nil, "PATH of a field that is reset, one of "+
		strings.Join(config.OperatorFields(), ", ")+"; may be repeated. Default: all but the last")
	s, f, patient, confirm := scopeFlags(cmd), outputFlag(cmd), waitFlags(cmd), confirmFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, field := range fields {
			if !slices.ContainsFunc(config.OperatorFields(), func(of string) bool {
				return field == of || strings.HasPrefix(field, of+".") || strings.HasPrefix(field, of+"[")
			}) {
				return usageOf(cmd, fmt.Errorf("--field %s: operators cannot set this field, only %s", field,
					strings.Join(config.OperatorFields(), ", ")))
			}
		}
		patch, err := fleet.ResetPatch(fields)
		if err != nil {
			return usageOf(cmd, fmt.Errorf("--field: %w", err))
		}
		if done, err := a.confirmReset(cmd, s, *f, confirm, args[0], patch); done || err != nil {
			return err
		}
		call := func(f *fleet.Fleet, ctx context.Context, shards []string) []fleet.ResetAnswer {
			return f.Reset(ctx, shards, args[0], patch, false)
		}
		err = askWith(cmd.Context(), a, s, *f, "resetting in", call, lines(func(answer fleet.ResetAnswer) string {
			g := answer.Message.GetGroup()
			return fmt.Sprintf("%s: group %s: size %d → %s, %d there", answer.Shard, args[0], answer.Before.GetSize(),
				fleet.SizeText(g, a.Now()), g.GetActualSize())
		}))
		return a.thenWaitForGroup(cmd.Context(), s, patient, args[0], err)
	}
	return cmd
}

// confirmReset shows what operators have set in a group, and asks for a confirmation.
func (a *app) confirmReset(cmd *cobra.Command, s *scope, output format, confirm *confirmation, name string,
	patch config.Patch) (done bool, err error) {
	if confirm.yes && !confirm.dryRun {
		return false, nil
	}
	f, shards, err := a.connect(s)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var changes []string
	before := f.Reset(cmd.Context(), shards, name, patch, true)
	for _, answer := range before {
		if answer.Err != nil {
			continue
		}
		set := "nothing is set"
		if texts := a.setTexts(answer); len(texts) > 0 {
			set = strings.Join(texts, ", ")
		}
		changes = append(changes, fmt.Sprintf("%s: group %s gets the values of the configuration: %s", answer.Shard,
			name, set))
	}
	if failed := fleet.Failed(before); len(failed) > 0 {
		return true, errors.Join(&shardsError{failed, len(before)})
	}
	return a.confirm(cmd, confirm, strings.Join(changes, "; "))
}

// setTexts describes what operators have set in a group.
func (a *app) setTexts(answer fleet.ResetAnswer) (texts []string) {
	if size := fleet.SizeText(answer.Before, a.Now()); size != num(answer.Before.GetSize()) {
		texts = append(texts, "size "+size)
	}
	return append(texts, fleet.OverrideTexts(answer.Before, a.Now())...)
}
