package devtool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// Sources of the times in a timeline. The demo reads its own clock only for its own signals and requests. All other
// times come from the program that caused the event.
const (
	fromStore    = "object store" // modification time of the object
	fromServer   = "server"       // event, record or log line of a server
	fromProvider = "provider"     // journal and documents of the tmux provider
	fromDemo     = "demo"         // a signal or a request of the demo
)

// moment is one line of the timeline.
type moment struct {
	at     time.Time
	what   string
	source string
	// since is the time from which the shown duration counts. If since is zero, no duration is shown.
	since time.Time
}

// timeline collects moments by step. Within a step they are printed in order of time.
type timeline struct {
	steps []step
}

type step struct {
	title   string
	moments []moment
}

// begin starts a step. Moments that are added after this call belong to the new step.
func (t *timeline) begin(title string) { t.steps = append(t.steps, step{title: title}) }

// note adds a moment to the current step.
func (t *timeline) note(at time.Time, source string, since time.Time, format string, args ...any) {
	last := &t.steps[len(t.steps)-1]
	last.moments = append(last.moments, moment{at: at, what: fmt.Sprintf(format, args...), source: source,
		since: since})
}

// print writes all steps, with times relative to the first moment.
func (t *timeline) print(w io.Writer) {
	var start time.Time
	width := 0
	for _, c := range t.steps {
		for _, m := range c.moments {
			if start.IsZero() || m.at.Before(start) {
				start = m.at
			}
			width = max(width, utf8.RuneCountInString(m.what))
		}
	}
	for _, c := range t.steps {
		fmt.Fprintf(w, "\n%s\n", c.title)
		slices.SortStableFunc(c.moments, func(a, b moment) int { return a.at.Compare(b.at) })
		for _, m := range c.moments {
			took := ""
			if !m.since.IsZero() {
				took = "+" + formatDuration(m.at.Sub(m.since))
			}
			pad := strings.Repeat(" ", width-utf8.RuneCountInString(m.what))
			fmt.Fprintf(w, "  %9.3f s  %s%s  %9s  %s\n", m.at.Sub(start).Seconds(), m.what, pad, took, m.source)
		}
	}
}

// formatDuration shows about three significant digits.
func formatDuration(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", d.Seconds()*1000)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
	default:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
}

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
