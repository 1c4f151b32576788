package admin

import (
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
	flags := changeFlags(cmd, confirmFlags, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, field := range fields {
			if !slices.ContainsFunc(config.OperatorFields(), func(of string) bool {
				return field == of || strings.HasPrefix(field, of+".") || strings.HasPrefix(field, of+"[")
			}) {
				return &usageError{err: fmt.Errorf("--field %s: operators cannot set this field", field),
					hint: near(field, config.OperatorFields())}
			}
		}
		reset, err := fleet.NewReset(args[0], fields...)
		if err != nil {
			return usageOf(cmd, fmt.Errorf("--field: %w", err))
		}
		err = a.edit(cmd, flags, "resetting in", reset, func(answer fleet.Changed) string {
			g := answer.Message.GetGroup()
			return fmt.Sprintf("%s: group %s: size %d → %s, %d there", answer.Shard, args[0], answer.Before.GetSize(),
				fleet.SizeText(g, a.Now()), g.GetActualSize())
		})
		return a.thenWaitForGroup(cmd.Context(), flags, args[0], err)
	}
	return cmd
}
