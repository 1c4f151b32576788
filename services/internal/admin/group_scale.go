package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

func (a *app) groupScaleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "scale GROUP SIZE", Short: "Change how many instances a group should have", Args: cobra.ExactArgs(2),
		Long: `Changes only the size of a group. If somebody changes other settings of the group at the
same time, these changes remain. For several shards, add one of two flags. With
--per-shard, the group gets SIZE in each shard. With --total, SIZE is divided evenly among
the shards that have the group.

If the new size is smaller, the leaders delete instances. In this case, "group scale" asks
for a confirmation on a terminal, and needs --yes elsewhere. With --dry-run, it shows which
instances the leaders would delete, and changes nothing.

"group scale" returns when the new size is stored; "nstance-admin events" shows the
effects. With --wait, it returns when the group has this size and all its instances are
healthy.`,
		Example: `  nstance-admin group scale workers 5 --shard us-west-2a --wait
  nstance-admin group scale workers 9 --all-shards --total
  nstance-admin group scale workers 0 --all-shards --per-shard --yes`,
	}
	var total, perShard bool
	cmd.Flags().BoolVar(&total, "total", false, "with several shards: SIZE is the sum over all of them")
	cmd.Flags().BoolVar(&perShard, "per-shard", false, "with several shards: SIZE is the size in each of them")
	cmd.MarkFlagsMutuallyExclusive("total", "per-shard")
	s, f, patient, confirm := scopeFlags(cmd), outputFlag(cmd), waitFlags(cmd), confirmFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		size, err := strconv.ParseUint(args[1], 10, 31)
		if err != nil {
			return usageOf(cmd, fmt.Errorf("size %q is not a number of instances", args[1]))
		}
		if s.all && !total && !perShard {
			if total, err = a.askTotal(s, args[1]); err != nil {
				return err
			}
		}
		if done, err := a.confirmScale(cmd, s, confirm, *f, args[0], uint32(size), total); done || err != nil {
			return err
		}
		call := func(f *fleet.Fleet, ctx context.Context, shards []string) []fleet.ScaleAnswer {
			if total {
				return f.ScaleTotal(ctx, shards, args[0], uint32(size))
			}
			return f.Scale(ctx, shards, args[0], uint32(size))
		}
		err = askWith(cmd.Context(), a, s, *f, "scaling in", call, lines(func(answer fleet.ScaleAnswer) string {
			g := answer.Message.GetGroup()
			return fmt.Sprintf("%s: group %s: size %d → %d, %d there", answer.Shard, g.GetGroup(),
				*answer.PreviousSize, g.GetSize(), g.GetActualSize())
		}))
		return a.thenWaitForGroup(cmd.Context(), s, patient, args[0], err)
	}
	return cmd
}

// confirmScale asks for a confirmation if the change makes a group smaller. In a dry run, it only shows the change and
// returns done = true.
func (a *app) confirmScale(cmd *cobra.Command, s *scope, confirm *confirmation, output format, group string,
	size uint32, total bool) (done bool, err error) {
	if confirm.yes && !confirm.dryRun {
		return false, nil
	}
	f, shards, err := a.connect(s)
	if err != nil {
		return false, err
	}
	defer f.Close()
	previews := f.PreviewScale(cmd.Context(), shards, group, size, total, confirm.dryRun)
	if confirm.dryRun {
		return true, a.showScale(output, previews)
	}
	var changes []string
	smaller := false
	for _, p := range previews {
		if p.Err != nil {
			continue // the change itself reports it
		}
		smaller = smaller || p.Size < p.PreviousSize
		changes = append(changes, fmt.Sprintf("%s: group %s: size %d → %d, %d there", p.Shard, group, p.PreviousSize,
			p.Size, p.ActualSize))
	}
	if !smaller {
		return false, nil
	}
	changes = append(changes, "instances beyond the size are drained and deleted")
	return a.confirm(cmd, confirm, strings.Join(changes, "; "))
}

// showScale shows what a change of a group's size would do, with the instances that the leaders would delete.
func (a *app) showScale(output format, previews []fleet.ScalePreview) error {
	err := a.show(output, fleet.Answers[fleet.ScalePreview]{Shards: previews}, func(w io.Writer) error {
		for _, p := range previews {
			if p.Err != nil {
				continue
			}
			fmt.Fprintf(w, "%s: group %s: size %d → %d, %d there\n", p.Shard, p.Group, p.PreviousSize, p.Size,
				p.ActualSize)
			if p.Size > p.ActualSize {
				fmt.Fprintf(w, "%s: %d instances would be created\n", p.Shard, p.Size-p.ActualSize)
			}
			if p.Plan.Of == nil {
				if p.Size < p.ActualSize {
					fmt.Fprintf(w, "%s: %d instances would be deleted; this leader does not say which\n", p.Shard,
						p.ActualSize-p.Size)
				}
				continue
			}
			for _, action := range p.Plan.Of.GetActions() {
				if action.GetKind() == "mark_deleting" {
					fmt.Fprintf(w, "%s: instance %s would be deleted: %s\n", p.Shard, action.GetInstanceId(),
						printable(action.GetReason()))
				}
			}
		}
		return nil
	})
	if failed := fleet.Failed(previews); len(failed) > 0 {
		err = errors.Join(err, &shardsError{failed, len(previews)})
	}
	return err
}

// askTotal asks the user whether a size is meant for all shards together or for each shard. If there is only one shard,
// it does not ask.
func (a *app) askTotal(s *scope, size string) (total bool, err error) {
	f, err := a.fleet(s)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if n := len(f.Shards()); n == 1 {
		return false, nil
	} else if !isTerminal(a.Stdin) {
		return false, &usageError{err: fmt.Errorf("is %s the size in each of %d shards, or in all together?", size, n),
			hint: "add --per-shard or --total"}
	}
	fmt.Fprintf(a.Stderr, "Is %s the size in each of %s, or in all together? Type per-shard or total: ", size,
		list(f.Shards()))
	answer, err := a.readAnswer()
	switch {
	case err != nil:
		return false, err
	case answer == "total":
		return true, nil
	case answer == "per-shard":
		return false, nil
	}
	return false, errors.New("neither per-shard nor total: nothing was done")
}
