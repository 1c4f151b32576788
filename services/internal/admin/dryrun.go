package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// changer holds the flags of a command that changes something in shards.
type changer struct {
	scope   *scope
	output  *format
	patient *patienceFlags
	confirm *confirmation
}

// changeFlags adds the flags of a command that changes something: those that `confirm` adds and, if waits is set, those
// to wait for the effect.
func changeFlags(cmd *cobra.Command, confirm func(*cobra.Command) *confirmation, waits bool) *changer {
	c := &changer{scope: scopeFlags(cmd), output: outputFlag(cmd), patient: new(patienceFlags)}
	if waits {
		c.patient = waitFlags(cmd)
	}
	c.confirm = confirm(cmd)
	return c
}

// change is [ask] after a preview and a confirmation.
func change[Q, M proto.Message](cmd *cobra.Command, a *app, c *changer, what string,
	method fleet.Method[Q, M], request Q, table func(io.Writer, answers[M]) error) error {
	done, err := a.confirmPlanned(cmd, c, func(ctx context.Context, f *fleet.Fleet, shards []string) []fleet.Preview {
		return f.Explain(ctx, shards, request)
	})
	if done || err != nil {
		return err
	}
	return ask(cmd.Context(), a, c.scope, *c.output, what, method, request, table)
}

// edit makes a change of a group after a preview and a confirmation, and shows the result in each shard as a line.
func (a *app) edit(cmd *cobra.Command, c *changer, what string, edit fleet.Edit,
	line func(fleet.Changed) string) error {
	done, err := a.confirmPlanned(cmd, c, func(ctx context.Context, f *fleet.Fleet, shards []string) []fleet.Preview {
		return f.ExplainEdit(ctx, shards, edit)
	})
	if done || err != nil {
		return err
	}
	return askWith(cmd.Context(), a, c.scope, *c.output, what, func(f *fleet.Fleet, ctx context.Context,
		shards []string) []fleet.Changed {
		return f.Edit(ctx, shards, edit)
	}, lines(line))
}

// dryRunFlag adds the flag --dry-run to a command that asks for no confirmation.
func dryRunFlag(cmd *cobra.Command) *confirmation {
	s := &confirmation{yes: true}
	cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "say what would be done, and do nothing")
	return s
}

// confirmPlanned shows what the leaders would do after a change, and asks for a confirmation. In a dry run, it returns
// done = true. The dry run and the command send the same requests.
func (a *app) confirmPlanned(cmd *cobra.Command, c *changer,
	preview func(context.Context, *fleet.Fleet, []string) []fleet.Preview) (done bool, err error) {
	if c.confirm.yes && !c.confirm.dryRun {
		return false, nil
	}
	if !c.confirm.dryRun && !isTerminal(a.Stdin) {
		return false, withoutTerminal(cmd)
	}
	f, shards, err := a.connect(c.scope)
	if err != nil {
		return false, err
	}
	defer f.Close()
	previews := during(a, "asking "+whom(shards), func() []fleet.Preview { return preview(cmd.Context(), f, shards) })
	if c.confirm.dryRun {
		err := a.show(*c.output, fleet.Answers[fleet.Preview]{Shards: previews}, func(w io.Writer) error {
			for _, line := range previewLines(previews) {
				fmt.Fprintln(w, line)
			}
			return nil
		})
		return true, errors.Join(err, failuresOf(previews))
	}
	if len(fleet.Failed(previews)) == len(previews) {
		return true, failuresOf(previews)
	}
	return a.confirm(cmd, c.confirm, "\n  "+strings.Join(previewLines(previews), "\n  "))
}

// makesSmaller reports whether a change of a size makes a group smaller in any shard.
func (a *app) makesSmaller(ctx context.Context, s *scope, scaling fleet.Scaling) (bool, error) {
	f, shards, err := a.connect(s)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return f.MakesSmaller(ctx, shards, scaling), nil
}

// previewLines returns the lines of previews, each with its shard. It skips shards that failed.
func previewLines(previews []fleet.Preview) (lines []string) {
	for _, p := range previews {
		if p.Err != nil {
			continue
		}
		for _, text := range fleet.ChangeTexts(p.Message) {
			lines = append(lines, printable(p.Shard+": "+text))
		}
	}
	return lines
}
