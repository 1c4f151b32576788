package plan

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

const (
	missedToAsk     = 1 // reports missed until the provider is asked
	missedUnhealthy = 3 // reports missed until an instance is unhealthy
	quietReports    = 2 // report intervals that a restart may take
	rebootQuiet     = 5 * time.Minute
)

// slack is how late a report may be before it is missed.
func slack(interval time.Duration) time.Duration { return interval / 10 }

// heard is from when an instance's silence counts: its last report, its registration if it has not reported yet, or the
// moment from which silence counts at all. (A registration that is later than a report was noted by a clock that was
// ahead.) ok is false while it cannot be silent: not registered, or this leader cannot tell yet.
func (i *Instance) heard(silenceFrom time.Time) (at time.Time, ok bool) {
	if i.RegisteredAt.IsZero() || silenceFrom.IsZero() {
		return time.Time{}, false
	}
	since := i.LastReport
	if since.IsZero() {
		since = i.RegisteredAt
	}
	return latest(since, silenceFrom), true
}

// quietUntil is until when an announced reboot, restart or upgrade excuses silence; zero when nothing was announced
// since the last report.
func (i *Instance) quietUntil(interval time.Duration) time.Time {
	switch {
	case i.RestartingAt.IsZero() || i.LastReport.After(i.RestartingAt):
		return time.Time{}
	case i.Reboot:
		return i.RestartingAt.Add(rebootQuiet)
	}
	return i.RestartingAt.Add(quietReports * interval)
}

// silentAt is when an instance becomes unhealthy unless it reports before: three reports missed, and no announced
// restart under way.
func (i *Instance) silentAt(s *Settings, silenceFrom time.Time) (at time.Time, ok bool) {
	heard, ok := i.heard(silenceFrom)
	if !ok {
		return time.Time{}, false
	}
	at = heard.Add(missedUnhealthy*s.HealthInterval + slack(s.HealthInterval))
	return latest(at, i.quietUntil(s.HealthInterval)), true
}

// missedAt is when the first report after the one heard at that time is missed.
func missedAt(heard time.Time, s *Settings) time.Time {
	return heard.Add(missedToAsk*s.HealthInterval + slack(s.HealthInterval))
}

// Owes is when an instance that was well at its last report has missed the next; ok is false for one that was not, or
// is not connected.
func (i *Instance) Owes(s *Settings) (missed time.Time, ok bool) {
	if !i.Healthy || !i.Connected || i.LastReport.IsZero() {
		return time.Time{}, false
	}
	return missedAt(i.LastReport, s), true
}

// removedSilent reports whether an instance on its way out was silent when its deletion was decided.
func (i *Instance) removedSilent(silentAt time.Time) bool {
	// Zero: the intent is being written.
	return i.DeletingAt.IsZero() || !i.DeletingAt.Before(silentAt)
}

// lateAt is from when an instance counts as silent for the guard: its stream was lost or one report is missed, and no
// announced restart is under way. The guard must see a wave whole when its first instance becomes unhealthy, and
// reports are spread over an interval.
func (i *Instance) lateAt(s *Settings, silenceFrom time.Time) (at time.Time, ok bool) {
	heard, ok := i.heard(silenceFrom)
	if !ok {
		return time.Time{}, false
	}
	at = missedAt(heard, s)
	if lost := latest(i.LostAt, silenceFrom); !i.Connected && !i.LostAt.IsZero() && lost.Before(at) {
		at = lost
	}
	return latest(at, i.quietUntil(s.HealthInterval)), true
}

// RunningSilent says how an instance counts for the shard's unhealthy guard: whether it is registered and runs as far
// as the provider has told, and whether it is silent (its stream was lost, or it missed a report). One that was removed
// for its silence counts until its VM is gone, so that removing does not make room for removing more.
func RunningSilent(i *Instance, s Settings, silenceFrom, now time.Time) (running, silent bool) {
	off := !i.PowerOffAt.IsZero() && !now.Before(i.PowerOffAt.Add(s.ShutdownGrace))
	if i.RegisteredAt.IsZero() || !i.runs() || i.Notice || off {
		return false, false
	}
	if i.deleting() {
		at, ok := i.silentAt(&s, silenceFrom)
		silent = ok && !now.Before(at) && i.removedSilent(at)
		return silent, silent
	}
	at, ok := i.lateAt(&s, silenceFrom)
	return true, ok && !now.Before(at)
}

// look finds out about one instance what does not depend on the others, and notes when that changes.
func (p *planner) look(i *Instance) mark {
	var m mark
	if i.OnDemand {
		m |= markOnDemand
	}
	if !i.RegisteredAt.IsZero() {
		m |= markRegistered
	}
	silentAt, hearing := i.silentAt(&p.Settings, p.SilenceFrom)
	if i.deleting() {
		m |= markOut
		p.restless = p.restless || hearing
		if hearing && !i.Notice && i.removedSilent(silentAt) && p.reached(silentAt) {
			m |= markSilent | markLate
		}
		return m
	}
	if i.moving() {
		return m | markMoving
	}
	if p.lost(i) {
		return m | markLost
	}
	if m&markRegistered == 0 {
		if due, ok := p.registrationDue(i); ok && p.reached(due) {
			m |= markFailed
		}
	} else {
		m |= p.listen(i, silentAt, hearing)
	}
	return m | p.age(i) | p.drift(i)
}

// listen judges the health of a registered instance that is not lost. Well is one whose stream is open and whose last
// report was healthy and is in time; anything less cannot stand in for another instance.
func (p *planner) listen(i *Instance, silentAt time.Time, hearing bool) mark {
	if missed, ok := i.Owes(&p.Settings); ok && missed.After(p.Now) {
		p.await(missed)
		return markWell
	}
	p.restless = true
	var m mark
	if at, ok := i.lateAt(&p.Settings, p.SilenceFrom); ok && p.reached(at) {
		m = markLate
	}
	switch {
	case hearing && p.reached(silentAt):
		return markSilent | markLate
	case i.LastReport.IsZero():
		return m | markUnknown
	case i.Healthy || i.EverHealthy:
		return m
	}
	// It registered and reports, but was never well: its time as a replacement is as long as a registration may take.
	if p.reached(latest(i.RegisteredAt, p.SilenceFrom).Add(p.Settings.RegistrationTimeout)) {
		return markSilent | markLate
	}
	return m
}

// lost: the provider says that the VM is gone or going, the cloud has announced that it will be, or its agent has said
// that the machine powers off and the grace is over. With a grace of zero nobody is asked.
func (p *planner) lost(i *Instance) bool {
	if !i.runs() || i.Notice {
		return true
	}
	return !i.PowerOffAt.IsZero() && p.reached(i.PowerOffAt.Add(p.Settings.ShutdownGrace))
}

// registrationDue is when an instance that has not registered is a failed creation. Time before silence counts does not
// count; while no agent has reached this leader, others that registered before prove that the fault may be ours, so
// nothing is due.
func (p *planner) registrationDue(i *Instance) (time.Time, bool) {
	from := p.SilenceFrom
	if from.IsZero() {
		if p.LeaderSince.IsZero() || p.registered {
			return time.Time{}, false
		}
		from = p.LeaderSince
	}
	return latest(i.launched(), from).Add(p.Settings.RegistrationTimeout), true
}

// ask: the provider is asked about an instance whose stream was lost, that missed one report, whose agent announced a
// power-off that has a grace, or whose end was asked for. Later questions come at doubling distances. An announced
// restart excuses a lost stream for its time.
func (p *planner) ask(i *Instance, m mark) {
	if i.Work == Creating || i.State == record.Reserved || i.provider() == ProviderGone || i.Asking {
		return
	}
	var since time.Time
	var why string
	need := func(at time.Time, reason string) {
		if !at.IsZero() && p.reached(at) && at.After(since) {
			since, why = at, reason
		}
	}
	quiet := i.quietUntil(p.Settings.HealthInterval)
	deleting := i.State == record.Deleting
	if !i.Connected && !i.LostAt.IsZero() {
		need(latest(i.LostAt, quiet), "its stream was lost")
	}
	// One that is well is awaited already.
	if heard, ok := i.heard(p.SilenceFrom); ok && !deleting && (m&markWell == 0 || !quiet.IsZero()) {
		need(latest(missedAt(heard, &p.Settings), quiet), "it missed a report")
	}
	if !i.PowerOffAt.IsZero() && p.Settings.ShutdownGrace > 0 && !deleting {
		need(again(i.PowerOffAt, i.Provider.At, 0), "its agent says that the machine powers off")
	}
	if deleting && !i.TerminateRequested.IsZero() {
		need(again(i.TerminateRequested, i.Provider.At, time.Second), "its end was asked for")
	}
	if !since.IsZero() && i.Provider.At.Before(since) && p.retry(i, i.AskFailed) {
		p.emit(Action{Kind: Ask, Instance: i.ID, ProviderID: i.ProviderID, Reason: why})
	}
}

// again is when to ask once more about something that began at from and was last asked about at last: after the first
// delay, then at doubling distances, one second at least.
func again(from, last time.Time, first time.Duration) time.Time {
	if last.Before(from.Add(first)) {
		return from.Add(first)
	}
	return last.Add(max(time.Second, last.Sub(from)))
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
