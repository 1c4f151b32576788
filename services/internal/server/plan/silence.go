package plan

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/reconnect"
)

const (
	missedToAsk     = 1 // missed reports after which the provider is asked
	missedUnhealthy = 3 // missed reports after which an instance is unhealthy
	quietReports    = 2 // report intervals that an announced restart may take
	rebootQuiet     = 5 * time.Minute
)

// reportSlack is how late a report may be before it counts as missed.
func reportSlack(interval time.Duration) time.Duration { return interval / 10 }

// overdueAfter returns when the agent's next report after the given report counts as missed.
func overdueAfter(report time.Time, interval time.Duration) time.Time {
	return report.Add(missedToAsk*interval + reportSlack(interval))
}

// silentSince returns the time since which an instance may have been silent: the time of its last report or, if it has
// not reported yet, of its registration. The result is never before silenceFrom. After a first report, the time of the
// registration no longer counts, even if it is later: the clock of the server that recorded it may have been fast. ok
// is false if the instance is not registered, or if this leader cannot judge silence yet.
func (i *Instance) silentSince(silenceFrom time.Time) (since time.Time, ok bool) {
	if i.RegisteredAt.IsZero() || silenceFrom.IsZero() {
		return time.Time{}, false
	}
	since = i.LastReport
	if since.IsZero() {
		since = i.RegisteredAt
	}
	return latest(since, silenceFrom), true
}

// quietUntil returns the time until which an announced reboot, restart or upgrade excuses silence. It is zero if
// nothing was announced since the last report.
func (i *Instance) quietUntil(interval time.Duration) time.Time {
	switch {
	case i.RestartingAt.IsZero() || i.LastReport.After(i.RestartingAt):
		return time.Time{}
	case i.Reboot:
		return i.RestartingAt.Add(rebootQuiet)
	}
	return i.RestartingAt.Add(quietReports * interval)
}

// silentAt returns when an instance becomes unhealthy if no report comes. By then, it has missed three reports, and no
// announced restart is under way. An instance that never reported to this leader also gets the time to come back (rule
// 33): after an outage of all servers, its agent may be waiting for its next attempt to connect.
func (i *Instance) silentAt(s *Settings, silenceFrom time.Time) (at time.Time, ok bool) {
	since, ok := i.silentSince(silenceFrom)
	if !ok {
		return time.Time{}, false
	}
	if i.Waking() {
		return latest(i.PromotedAt, silenceFrom).Add(s.RegistrationTimeout), true
	}
	slack := reportSlack(s.HealthInterval)
	at = since.Add(missedUnhealthy*s.HealthInterval + slack)
	if i.LastReport.IsZero() {
		at = latest(at, silenceFrom.Add(reconnect.ReturnTime(s.HealthInterval)+slack))
	}
	return latest(at, i.quietUntil(s.HealthInterval)), true
}

// deletedWhileSilent reports whether an instance that is leaving was silent when its deletion was decided. It also
// returns true if an earlier leader decided the deletion and the agent has not reported to this leader.
func (i *Instance) deletedWhileSilent(silentAt time.Time) bool {
	// DeletingAt is zero until the decision to delete is recorded.
	return i.DeletingAt.IsZero() || !i.DeletingAt.Before(silentAt) || i.LastReport.IsZero()
}

// deletedWhileFailing reports whether a leaving instance fails a health check, and already failed it when its deletion
// was decided. A check that began to fail later does not count: the drain may be the reason. If an earlier leader
// decided the deletion, the recorded reason tells whether a check failed.
func (i *Instance) deletedWhileFailing() bool {
	switch {
	case i.FailedCheck != "" && (i.DeletingAt.IsZero() || !i.DeletingAt.Before(i.CheckFailedAt)):
		return true
	case decidedBy(i.DeleteReason, 52):
		return i.FailedCheck != "" || i.LastReport.IsZero()
	}
	// Load balancers do not check it any longer, and an instance that flaps may report.
	return decidedBy(i.DeleteReason, 59) || decidedBy(i.DeleteReason, 62) || decidedBy(i.DeleteReason, 63)
}

// lateAt returns when an instance begins to count as silent for the unhealthy guard: its stream was lost or one report
// is missed, and no announced restart is under way. One missed report is enough, because instances report at different
// times. If a fault affects several instances, the guard must count all of them before the first one becomes unhealthy.
func (i *Instance) lateAt(s *Settings, silenceFrom time.Time) (at time.Time, ok bool) {
	since, ok := i.silentSince(silenceFrom)
	if !ok {
		return time.Time{}, false
	}
	if i.Waking() {
		return i.silentAt(s, silenceFrom)
	}
	at = overdueAfter(since, s.HealthInterval)
	if lost := latest(i.LostAt, silenceFrom); !i.Connected && !i.LostAt.IsZero() && lost.Before(at) {
		at = lost
	}
	return latest(at, i.quietUntil(s.HealthInterval)), true
}

// reportsInTime reports whether a registered instance is connected, was healthy at its last report and has not missed
// the next one. Only such an instance can take the place of another.
func (i *Instance) reportsInTime(s *Settings, now time.Time) bool {
	overdue, ok := i.reportOverdueAt(s)
	return ok && overdue.After(now)
}

// CountSilence returns how an instance counts for the shard's unhealthy guard (rule 26). running: it is registered, and
// it runs according to the provider's last answer. silent: its stream was lost, it missed a report, it fails a health
// check, or a load balancer called it unhealthy when asked last. An instance that is deleted for such a reason counts
// until its VM is gone. If it did not count, each deletion would make the guard permit another one.
func CountSilence(i *Instance, s Settings, silenceFrom, now time.Time) (running, silent bool) {
	running, silent, _ = i.countSilence(&s, silenceFrom, now, i.reportsInTime(&s, now))
	return running, silent
}

// countSilence does the same as CountSilence. until is when the result changes without an event.
func (i *Instance) countSilence(s *Settings, silenceFrom, now time.Time, inTime bool) (running, silent bool,
	until time.Time) {
	if i.RegisteredAt.IsZero() || !i.runs() || i.Notice || !i.PreservedAt.IsZero() || i.Asleep() {
		return false, false, time.Time{}
	}
	if i.isLeaving() {
		if i.deletedWhileFailing() && !silenceFrom.IsZero() {
			return true, true, time.Time{}
		}
		at, ok := i.silentAt(s, silenceFrom)
		if !ok || !i.deletedWhileSilent(at) {
			return false, false, time.Time{}
		}
		silent, until = reached(at, now)
		return silent, silent, until
	}
	off, until := i.poweredOff(s, now)
	if off {
		return false, false, time.Time{}
	}
	if i.Balancer.Rounds > 0 && !silenceFrom.IsZero() {
		return true, true, until // before rule 59 applies: load balancers do not change all verdicts in one round
	}
	if inTime {
		return true, false, until
	}
	if i.FailedCheck != "" && !silenceFrom.IsZero() {
		return true, true, until
	}
	at, ok := i.lateAt(s, silenceFrom)
	if !ok {
		return true, false, until
	}
	silent, late := reached(at, now)
	return true, silent, sooner(until, late)
}

// poweredOff reports whether shutdown_grace has passed since the agent announced a power-off.
func (i *Instance) poweredOff(s *Settings, now time.Time) (off bool, until time.Time) {
	if i.PowerOffAt.IsZero() {
		return false, time.Time{}
	}
	return reached(i.PowerOffAt.Add(s.ShutdownGrace), now)
}
