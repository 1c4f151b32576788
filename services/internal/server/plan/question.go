package plan

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

// planQuestion is rule 31. The provider is asked about an instance in five cases: its stream was lost, it missed one
// report, its agent announced a power-off, its termination was requested, or its VM falls asleep or wakes. The first
// two cases do not count during an announced restart. In the other cases, the question is repeated, and the pause
// doubles each time.
func (g *group) planQuestion(out *steps, i subject) {
	deleting := i.State == record.Deleting
	if !i.has(factUnwell) && i.RestartingAt.IsZero() && i.PowerOffAt.IsZero() && !deleting && !i.Asleep() {
		return // by far the most instances: they report in time and have announced nothing
	}
	if i.Work == Creating || i.Work == Promoting || i.State == record.Reserved ||
		i.providerState() == ProviderGone || i.Asking {
		return
	}
	var since time.Time
	var reason string
	consider := func(at time.Time, why string) {
		if at.IsZero() {
			return
		}
		due, change := reached(at, g.Now)
		out.wait(change)
		if due && at.After(since) {
			since, reason = at, why
		}
	}
	if i.Rests() && !deleting {
		consider(g.nextLook(i.Instance))
	} else {
		g.findSigns(i, deleting, consider)
	}
	if since.IsZero() || !i.Provider.At.Before(since) {
		return
	}
	g.attempt(out, i.AskFailed, Action{Kind: Ask, Instance: i.ID, ProviderID: i.ProviderID, Reason: reason})
}

// findSigns calls consider for each sign that the VM of an instance may have ended, with the time of the question.
func (g *group) findSigns(i subject, deleting bool, consider func(at time.Time, why string)) {
	quiet := i.quietUntil(g.Settings.HealthInterval)
	if !i.Connected && !i.LostAt.IsZero() {
		consider(latest(i.LostAt, quiet), "its stream was lost")
	}
	// Skip an instance that reports in time. When its next report becomes overdue, the group is planned again anyway.
	if lastReport, ok := i.silentSince(g.SilenceFrom); ok && !deleting && (i.has(factUnwell) || !quiet.IsZero()) {
		consider(latest(overdueAfter(lastReport, g.Settings.HealthInterval), quiet), "it missed a report")
	}
	if !i.PowerOffAt.IsZero() && g.Settings.ShutdownGrace > 0 && !deleting {
		consider(nextQuestion(i.PowerOffAt, i.Provider.At, 0), "its agent says that the machine powers off")
	}
	if deleting && !i.TerminateRequested.IsZero() {
		consider(nextQuestion(i.TerminateRequested, i.Provider.At, time.Second), "its termination was requested")
	}
}

// nextQuestion returns when to ask the provider next about something that began at the time "from". The first question
// is due after the delay "first", and "last" is the time of the last question. The interval doubles with each question,
// and is at least one second.
func nextQuestion(from, last time.Time, first time.Duration) time.Time {
	if last.Before(from.Add(first)) {
		return from.Add(first)
	}
	return last.Add(max(time.Second, last.Sub(from)))
}
