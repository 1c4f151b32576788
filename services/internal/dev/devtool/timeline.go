package devtool

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
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
