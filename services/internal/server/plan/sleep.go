package plan

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

const (
	// sleepRetry is the time after which a VM is put to sleep again if it still runs, and for which no spare of a group
	// is put to sleep after one did not wake.
	sleepRetry = 10 * time.Minute
	// surelyWoken is how long after a promotion a leader that takes over need not wake the VM: an earlier leader did.
	surelyWoken = 10 * time.Minute
	// certificateShare is the share of the time from falling asleep to the expiry of the agent's certificate that is
	// left when a spare that sleeps is renewed (rule 80).
	certificateShare = 3

	reasonSleep       = "it is a spare, and its health checks have passed"
	reasonStaysAwake  = "it is a spare that sleeps, but its VM runs"
	reasonWake        = "it became a member, and its VM may be asleep"
	reasonOtherSleep  = "spares.state is another one than when it was created"
	reasonCertificate = "its certificate would expire while it sleeps"
)

// Asleep reports whether the instance is a spare that a leader has decided to put to sleep (rule 82).
func (i *Instance) Asleep() bool { return i.Spare && !i.AsleepAt.IsZero() }

// Waking reports whether the instance is a member that slept as a spare, and has not reported since it was woken (rule
// 83).
func (i *Instance) Waking() bool { return !i.Spare && i.Rests() }

// Rests reports whether the VM of the instance may be asleep. If so, that it stops does not mean that it has ended.
func (i *Instance) Rests() bool { return !i.AsleepAt.IsZero() && !i.Woken }

// sleeps reports whether the VM is asleep, according to the provider's last answer.
func (i *Instance) sleeps() bool { return i.Asleep() && i.Provider.Value == ProviderStopped }

// ended reports whether the VM has ended or is ending in a given state. A VM that falls asleep or sleeps has not ended.
func (i *Instance) ended(in ProviderState) bool {
	return in.Ended() && !(i.Rests() && in.asleep())
}

// asleep reports whether a VM in this state may sleep or fall asleep.
func (s ProviderState) asleep() bool { return s == ProviderStopping || s == ProviderStopped }

// mayHaveWoken reports whether a report can come from a VM that was woken. The VM may report before the call that wakes
// it has returned. Such an agent knows its new role, which it cannot have learned before it slept.
func (i *Instance) mayHaveWoken(role Role) bool {
	return !i.WakeRequested.IsZero() || i.Work == Waking && role == RoleMember
}

// ApplyWoken returns the instance after a report that proves that its VM was woken. The provider's earlier answers no
// longer hold.
func ApplyWoken(i Instance, now time.Time) Instance {
	if i.Waking() {
		i.Woken, i.WakeRequested = true, firstTime(i.WakeRequested, now)
		i.Provider = Observed[ProviderState]{Value: ProviderRunning, Complete: true, At: now}
	}
	return i
}

// RequestSleep records the decision to put the VM of a spare to sleep. It returns false if it changed nothing.
func RequestSleep(rec *record.Instance, now time.Time) bool {
	if !rec.IsSpare() || rec.State != record.Registered || rec.Spare.Sleep == "" || !rec.Spare.AsleepAt.IsZero() {
		return false
	}
	spare := *rec.Spare
	spare.AsleepAt = now
	rec.Spare = &spare
	return true
}

// applySleep applies what the record says about the sleep of a spare. promoted means that the record has just made it a
// member. What the agent said before it fell asleep then says nothing any more.
func applySleep(i Instance, spare *record.Spare, promoted bool, now time.Time) Instance {
	i.Sleep, i.AsleepAt = spare.Sleep, spare.AsleepAt
	switch {
	case !i.Waking():
	case promoted:
		i.Healthy, i.EverHealthy, i.ChecksPending, i.FailedCheck, i.CheckFailedAt = false, false, false, "", time.Time{}
		i.PowerOffAt, i.RestartingAt, i.Reboot, i.MaintenanceFailed = time.Time{}, time.Time{}, false, Failure{}
	case !now.Before(i.PromotedAt.Add(surelyWoken)):
		i.Woken = true
	}
	return i
}

// AwaitsFiles reports whether an instance that slept as a spare still has to get the files of the configuration with
// the given hash before it can become healthy.
func AwaitsFiles(i *Instance, reported string, failed bool, hash string) bool {
	return !i.AsleepAt.IsZero() && !i.EverHealthy && hash != "" && reported != hash && !failed
}

// maySleep is rule 82: it reports whether a spare is to be put to sleep.
func (g *group) maySleep(n int) bool {
	i := &g.Instances[n]
	awake, _ := g.stayAwake()
	return !awake && g.class(n) == classSpare && i.Sleep != "" && i.AsleepAt.IsZero() && i.Role == RoleSpare &&
		i.Connected && !i.ChecksPending && !i.FilesFailed && i.PowerOffAt.IsZero() && i.RestartingAt.IsZero() &&
		(i.RuntimeHash == g.Group.RuntimeHash || g.Group.RuntimeHash == "")
}

// stayAwake reports whether the spares of the group stay awake for now, because one did not wake.
func (g *group) stayAwake() (bool, time.Time) {
	if g.NotWokenAt.IsZero() {
		return false, time.Time{}
	}
	over, until := reached(g.NotWokenAt.Add(sleepRetry), g.Now)
	return !over, until
}

// planSleep plans to put a spare to sleep (rule 82), or to wake a member (rule 83). It returns false for an instance
// that neither sleeps nor is to sleep.
func (g *group) planSleep(out *steps, n int) bool {
	i := &g.Instances[n]
	a := Action{Kind: Sleep, Instance: i.ID, ProviderID: i.ProviderID, Reason: reasonSleep, Rule: 82}
	switch {
	case i.Work != Idle || i.State != record.Registered:
		return i.Rests()
	case i.Waking():
		stopped := !i.runs() && i.Provider.At.After(i.WakeRequested)
		if i.WakeFailed != "" || !i.WakeRequested.IsZero() && !stopped {
			return true
		}
		a.Kind, a.Reason, a.Rule = Wake, reasonWake, 83
	case i.Asleep():
		again := i.SleepRequested.IsZero() || !i.Provider.At.Before(i.SleepRequested.Add(sleepRetry))
		if !again || i.Provider.Value != ProviderRunning {
			return true
		}
		a.Reason = reasonStaysAwake
	case !g.maySleep(n):
		if i.Spare && i.Sleep != "" {
			_, until := g.stayAwake()
			out.wait(until)
		}
		return false
	}
	g.attempt(out, i.MaintenanceFailed, a)
	return true
}

// fallsAsleep reports whether a spare is to be put to sleep, or does not sleep yet.
func (g *group) fallsAsleep(n int) bool {
	i := &g.Instances[n]
	return g.maySleep(n) || i.Asleep() && !i.sleeps()
}

// wakesBy returns when the VM of a member that slept as a spare must have left its sleep.
func (g *group) wakesBy(i *Instance) time.Time {
	return latest(i.PromotedAt, g.LeaderSince).Add(g.Settings.RequestTimeout)
}

// isNotWoken is rule 84. The provider must have said after [group.wakesBy] that the VM still sleeps.
func (g *group) isNotWoken(i subject) (bool, time.Time) {
	switch {
	case !i.Waking():
		return false, time.Time{}
	case i.WakeFailed != "":
		return true, time.Time{}
	case i.runs():
		return false, time.Time{}
	}
	by := g.wakesBy(i.Instance)
	over, until := reached(by, g.Now)
	return over && !i.Provider.At.Before(by), until
}

// nextLook returns when to ask the provider about a VM that falls asleep or wakes, and why; zero: not at all.
func (g *group) nextLook(i *Instance) (at time.Time, why string) {
	switch {
	case i.Waking() && i.Provider.Value != ProviderRunning:
		at = nextQuestion(latest(i.WakeRequested, i.PromotedAt), i.Provider.At, time.Second)
		if by := g.wakesBy(i); i.Provider.At.Before(by) {
			at = sooner(at, by)
		}
		return at, "its VM is being woken"
	case i.Asleep() && !i.sleeps():
		return nextQuestion(latest(i.SleepRequested, i.AsleepAt), i.Provider.At, time.Second), "its VM falls asleep"
	}
	return time.Time{}, ""
}

// isOfOtherState is the part of rule 80 about spares.state.
func (g *group) isOfOtherState(i subject) (bool, time.Time) {
	return i.Sleep != g.Group.Spares.Sleep() && !g.isProtected(i.Instance), time.Time{}
}

// isCertificateDue is the part of rule 80 about the certificates of spares that sleep. It holds for protected ones,
// too: an agent with an expired certificate can do nothing but renew it.
func (g *group) isCertificateDue(i *Instance) (bool, time.Time) {
	if !i.Asleep() || i.CertificateEnds.IsZero() {
		return false, time.Time{}
	}
	return reached(i.CertificateEnds.Add(-i.CertificateEnds.Sub(i.AsleepAt)/certificateShare), g.Now)
}

// canWake reports whether a spare can become a member now. One that falls asleep cannot: nothing can stop that, and it
// may take longer than a create. One that the provider did not put to sleep can.
func (i *Instance) canWake() bool {
	return !i.Asleep() || i.sleeps() || i.SleepRequested.IsZero() && i.MaintenanceFailed.Count > 0
}

// wakeRank orders spares by how soon they can serve: first those that run, then those that sleep.
func (i *Instance) wakeRank() int {
	if i.sleeps() {
		return 1
	}
	return 0
}
