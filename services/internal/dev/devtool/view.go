package devtool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// showUntilConverged shows groups and instances until every group is complete (see converged). On a terminal it redraws
// the tables in place. Elsewhere it prints them once, at the end.
func showUntilConverged(ctx context.Context, out io.Writer, stack *local.Stack, operator *local.Operator) error {
	terminal := false
	if file, ok := out.(*os.File); ok {
		info, err := file.Stat()
		terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	drawn := 0 // lines on the screen
	for {
		groups, err := operator.Groups(ctx)
		if err != nil {
			return err
		}
		instances, err := operator.Instances(ctx)
		if err != nil {
			return err
		}
		done := converged(groups)
		if text := formatTables(stack, groups, instances); terminal || done {
			if drawn > 0 {
				fmt.Fprintf(out, "\x1b[%dA\x1b[J", drawn) // cursor up, clear to the end of the screen
			}
			fmt.Fprint(out, text)
			drawn = strings.Count(text, "\n")
		}
		if done {
			return nil
		}
		if err := local.Pause(ctx, 200*time.Millisecond); err != nil {
			return errors.Join(err, errors.New(formatTables(stack, groups, instances)))
		}
	}
}

// converged reports whether there are groups and every group has as many instances as it should have, all healthy.
func converged(groups []*nstancev1.GroupStatus) bool {
	for _, g := range groups {
		if g.GetActualSize() != g.GetSize() || g.GetHealthy() < g.GetSize() {
			return false
		}
	}
	return len(groups) > 0
}

// formatTables returns a table of the groups and a table of the instances.
func formatTables(stack *local.Stack, groups []*nstancev1.GroupStatus, instances []*nstancev1.InstanceStatus) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "\n  GROUP\tSIZE\tACTUAL\tHEALTHY\t")
	for _, g := range groups {
		fmt.Fprintf(w, "  %s\t%d\t%d\t%d\t%s\n", g.GetGroup(), g.GetSize(), g.GetActualSize(), g.GetHealthy(),
			g.GetBlockedReason())
	}
	fmt.Fprintln(w, "\n  INSTANCE\tGROUP\tSTATE\tHEALTH\tPID\t")
	for _, i := range instances {
		pid := "-"
		if id, err := ident.ParseID(i.GetInstanceId()); err == nil {
			if vm, err := stack.VM(id); err == nil && vm.PID > 0 {
				pid = fmt.Sprint(vm.PID)
			}
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t\n", i.GetInstanceId(), i.GetGroup(), i.GetState(), i.GetHealth(), pid)
	}
	_ = w.Flush() // a strings.Builder does not fail
	return b.String()
}
