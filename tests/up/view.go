package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/tests/local"
)

// watch shows groups and instances until every group has its size in healthy instances. On a terminal the view is drawn
// in place.
func watch(ctx context.Context, stack *local.Stack, operator *local.Operator) error {
	terminal := false
	if info, err := os.Stdout.Stat(); err == nil {
		terminal = info.Mode()&os.ModeCharDevice != 0
	}
	drawn := 0
	for {
		groups, err := operator.Groups(ctx)
		if err != nil {
			return err
		}
		instances, err := operator.Instances(ctx)
		if err != nil {
			return err
		}
		done := settled(groups)
		if text := view(stack, groups, instances); terminal || done {
			if drawn > 0 {
				fmt.Printf("\x1b[%dA\x1b[J", drawn) // up, and clear to the end of the screen
			}
			fmt.Print(text)
			drawn = strings.Count(text, "\n")
		}
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), errors.New(view(stack, groups, instances)))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func settled(groups []*nstancev1.GroupStatus) bool {
	for _, g := range groups {
		if g.GetActualSize() != g.GetSize() || g.GetHealthy() < g.GetSize() {
			return false
		}
	}
	return len(groups) > 0
}

func view(stack *local.Stack, groups []*nstancev1.GroupStatus, instances []*nstancev1.InstanceStatus) string {
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
	_ = w.Flush() // to memory
	return b.String()
}
