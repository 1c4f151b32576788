package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Who says when something happened. The demo's own clock is read for what the demo itself does, at the moment it does
// it, and never for how long it waited.
const (
	fromStore    = "object store" // modification time of the object
	fromServer   = "server"       // event, record or log line of a server
	fromProvider = "provider"     // the tmux provider's journal and documents
	fromDemo     = "demo"         // a signal sent, a request made
)

// moment is one line of the timeline.
type moment struct {
	at     time.Time
	what   string
	source string
	// since, if set, is the moment that this one answers, and the time from there to here is shown.
	since time.Time
}

// timeline collects moments in the order of its chapters; inside a chapter they are shown in order of time.
type timeline struct {
	chapters []chapter
}

type chapter struct {
	title   string
	moments []moment
}

func (t *timeline) chapter(title string) { t.chapters = append(t.chapters, chapter{title: title}) }

func (t *timeline) add(m moment) {
	last := &t.chapters[len(t.chapters)-1]
	last.moments = append(last.moments, m)
}

// note adds a moment; since is zero where nothing is answered.
func (t *timeline) note(at time.Time, source string, since time.Time, format string, args ...any) {
	t.add(moment{at: at, what: fmt.Sprintf(format, args...), source: source, since: since})
}

// print writes the whole story, times relative to its first moment.
func (t *timeline) print(w io.Writer) {
	var start time.Time
	width := 0
	for _, c := range t.chapters {
		for _, m := range c.moments {
			if start.IsZero() || m.at.Before(start) {
				start = m.at
			}
			width = max(width, utf8.RuneCountInString(m.what))
		}
	}
	for _, c := range t.chapters {
		fmt.Fprintf(w, "\n%s\n", c.title)
		slices.SortStableFunc(c.moments, func(a, b moment) int { return a.at.Compare(b.at) })
		for _, m := range c.moments {
			took := ""
			if !m.since.IsZero() {
				took = "+" + short(m.at.Sub(m.since))
			}
			pad := strings.Repeat(" ", width-utf8.RuneCountInString(m.what))
			fmt.Fprintf(w, "  %9.3f s  %s%s  %9s  %s\n", m.at.Sub(start).Seconds(), m.what, pad, took, m.source)
		}
	}
}

// short is a duration with three digits that matter.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", d.Seconds()*1000)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
	default:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
}
