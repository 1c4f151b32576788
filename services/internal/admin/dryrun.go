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

// preview asks the leaders of shards what they would do after a change.
type preview func(ctx context.Context, f *fleet.Fleet, shards []string) []fleet.Preview

// previewOf returns the preview of the change of a request, which is the same for all shards.
func previewOf(request proto.Message) preview {
	return func(ctx context.Context, f *fleet.Fleet, shards []string) []fleet.Preview {
		return f.Explain(ctx, shards, request)
	}
}

// dryRunFlag adds the flag --dry-run to a command that asks for no confirmation.
func dryRunFlag(cmd *cobra.Command) *confirmation {
	s := &confirmation{yes: true}
	cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "say what would be done, and do nothing")
	return s
}

// confirmPlanned shows what the leaders would do after a change, and asks for a confirmation. In a dry run, it returns
// done = true. The dry run and the command send the same requests.
func (a *app) confirmPlanned(cmd *cobra.Command, s *scope, confirm *confirmation, output format,
	ask preview) (done bool, err error) {
	if confirm.yes && !confirm.dryRun {
		return false, nil
	}
	if !confirm.dryRun && !isTerminal(a.Stdin) {
		return false, withoutTerminal(cmd)
	}
	f, shards, err := a.connect(s)
	if err != nil {
		return false, err
	}
	defer f.Close()
	previews := during(a, "asking "+whom(shards), func() []fleet.Preview { return ask(cmd.Context(), f, shards) })
	failed := fleet.Failed(previews)
	if confirm.dryRun {
		err := a.show(output, fleet.Answers[fleet.Preview]{Shards: previews}, func(w io.Writer) error {
			for _, line := range previewLines(previews) {
				fmt.Fprintln(w, line)
			}
			return nil
		})
		if len(failed) > 0 {
			err = errors.Join(err, &shardsError{failed, len(previews)})
		}
		return true, err
	}
	if len(failed) == len(previews) {
		return true, &shardsError{failed, len(previews)}
	}
	return a.confirm(cmd, confirm, "\n  "+strings.Join(previewLines(previews), "\n  "))
}

// makesSmaller reports whether a change of a size makes a group smaller in any shard.
func (a *app) makesSmaller(ctx context.Context, s *scope, group string, scaling fleet.Scaling) (bool, error) {
	f, shards, err := a.connect(s)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return f.MakesSmaller(ctx, shards, group, scaling), nil
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
