package plantest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
)

// voluntary are the causes of deletions that the planner chooses to make. With any other cause, the instance was lost,
// or its deletion was requested.
var voluntary = map[plan.Cause]bool{plan.CauseScaleDown: true, plan.CauseGroupDeleted: true,
	plan.CauseTerminating: true, plan.CauseUnhealthy: true, plan.CauseHealthCheck: true,
	plan.CauseLoadBalancer: true, plan.CauseFlapping: true,
	plan.CauseRecommendation: true, plan.CauseMaintenance: true,
	plan.CauseExpired: true, plan.CauseDrift: true, plan.CauseReturnToSpot: true}

// Check checks one decision against the rules that hold for every snapshot. It returns the first violation.
func Check(s plan.Snapshot, d plan.Decision) error {
	if again := plan.Next(s); !reflect.DeepEqual(again, d) {
		return fmt.Errorf("not deterministic: %+v, then %+v", d, again)
	}
	if !d.NextPlan.IsZero() && !d.NextPlan.After(s.Now) {
		return fmt.Errorf("wake-up at %s is not after %s", d.NextPlan, s.Now)
	}
	if err := checkWait(s, d); err != nil {
		return err
	}
	size, _ := s.Group.SizeAt(s.Now)
	desired, surge := max(0, size), max(1, s.Group.MaxSurge)
	if s.Group.Deleted || s.Settings.Terminating {
		desired = 0
	}
	have := map[ident.ID]*plan.Instance{}
	counted := s.PendingCreates
	for n := range s.Instances {
		i := &s.Instances[n]
		have[i.ID] = i
		if counts(s, i) {
			counted++
		}
	}
	creates, preserved, spares, promoted := 0, 0, 0, 0
	busy := map[ident.ID]plan.Kind{}
	marked, reasons := map[ident.ID]plan.Cause{}, map[ident.ID]string{}
	for _, a := range d.Actions {
		i := have[a.Instance]
		switch a.Kind {
		case plan.Create:
			if a.Spare {
				spares++
				continue
			}
			creates++
			if a.Replaces.IsZero() != (a.Cause == "") {
				return fmt.Errorf("%+v: an instance is replaced for a cause", a)
			}
			continue
		case plan.Ask:
			if i == nil || i.Asking {
				return fmt.Errorf("%+v: nothing to ask", a)
			}
			continue
		case plan.RaiseError, plan.ResolveError, plan.ForgetGroup, plan.Halt, plan.EndHalt, plan.KeepGood:
			continue
		}
		if i == nil {
			return fmt.Errorf("%+v: no such instance", a)
		}
		if i.Work != plan.Idle {
			return fmt.Errorf("%+v: work %d is under way", a, i.Work)
		}
		if before, twice := busy[i.ID]; twice {
			return fmt.Errorf("%+v: %s is planned as well", a, before)
		}
		busy[i.ID] = a.Kind
		switch a.Kind {
		case plan.Terminate, plan.Drain, plan.Forget:
			if i.State != record.Deleting {
				return fmt.Errorf("%+v: state %s, the intent is not durable", a, i.State)
			}
			if a.Kind == plan.Forget && (i.Provider.Value != plan.ProviderGone || !i.Provider.Complete) {
				return fmt.Errorf("%+v: the VM is not known to be gone", a)
			}
		case plan.Promote:
			if !i.Spare || i.State != record.Registered || !i.Healthy && !i.Asleep() ||
				plan.Drifted(&s.Group, s.Image, i) {
				return fmt.Errorf("%+v: it cannot become a member: %+v", a, *i)
			}
			promoted++
		case plan.Sleep:
			if !i.Spare || i.State != record.Registered || i.Sleep == "" || !i.Healthy && !i.Asleep() ||
				i.Provider.Value == plan.ProviderStopped {
				return fmt.Errorf("%+v: it cannot sleep: %+v", a, *i)
			}
		case plan.Wake:
			if !i.Waking() || i.State != record.Registered {
				return fmt.Errorf("%+v: it does not sleep: %+v", a, *i)
			}
		case plan.Preserve:
			if i.State == record.Deleting || i.State == record.Reserved || i.OnDemand {
				return fmt.Errorf("%+v: in state %s, on demand: %t", a, i.State, i.OnDemand)
			}
			if i.PreservedAt.IsZero() {
				preserved++
				marked[i.ID], reasons[i.ID] = a.Cause, a.Reason
			}
		case plan.Mark:
			if i.State == record.Deleting && a.Cause == plan.CauseNotice { // rule 40
				if !a.Deadline.Before(i.DeleteDeadline) {
					return fmt.Errorf("%+v: does not shorten the drain, which ends at %s", a, i.DeleteDeadline)
				}
				continue
			}
			if until := plan.PreservedUntil(&s.Group, i); until.After(s.Now) && a.Cause == plan.CausePreserved &&
				preservedOf(s) <= s.Group.Preserve.Max {
				return fmt.Errorf("%+v: it is preserved until %s", a, until)
			}
			if i.State == record.Deleting || i.State == record.Reserved {
				return fmt.Errorf("%+v: in state %s", a, i.State)
			}
			if i.OnDemand && slices.Contains([]plan.Cause{plan.CauseScaleDown, plan.CauseUnhealthy,
				plan.CauseHealthCheck, plan.CauseLoadBalancer, plan.CauseFlapping, plan.CauseDrift}, a.Cause) {
				return fmt.Errorf("%+v: an on-demand instance", a)
			}
			marked[i.ID], reasons[i.ID] = a.Cause, a.Reason
		}
	}
	if preserved > 0 && preserved+preservedOf(s) > s.Group.Preserve.Max {
		return fmt.Errorf("%d instances are preserved on top of %d, at most %d may be", preserved, preservedOf(s),
			s.Group.Preserve.Max)
	}
	if err := checkSpares(s, desired, spares, promoted, busy); err != nil {
		return err
	}
	if promoted > 0 && counted+promoted > desired+surge+len(marked) {
		return fmt.Errorf("%d spares become members on top of %d, the size is %d with a surge of %d", promoted,
			counted, desired, surge)
	}
	return checkSize(s, desired, surge, counted, creates, marked, reasons)
}

// checkSpares checks that a group never has more spares than it asks for, and one more while one is renewed.
func checkSpares(s plan.Snapshot, desired, creates, promoted int, busy map[ident.ID]plan.Kind) error {
	want, have := s.Group.Spares.Count, s.PendingSpares
	if desired == 0 {
		want = 0
	}
	for n := range s.Instances {
		i := &s.Instances[n]
		if plan.CountsAsSpare(i) && busy[i.ID] != plan.Mark && busy[i.ID] != plan.Promote &&
			(i.PowerOffAt.IsZero() || i.PowerOffAt.Add(s.Settings.ShutdownGrace).After(s.Now)) &&
			!timedOutSpare(s, i) {
			have++
		}
	}
	if creates > 0 && have+creates > want+1 {
		return fmt.Errorf("%d creates of spares on top of %d, and %d are wanted", creates, have, want)
	}
	if creates > 0 && s.SpareBackoff.Until(s.Group.GroupKey).After(s.Now) {
		return fmt.Errorf("%d creates of spares while they back off", creates)
	}
	return nil
}

// timedOutSpare reports whether the deletion of a spare that did not register is due.
func timedOutSpare(s plan.Snapshot, i *plan.Instance) bool {
	return i.RegisteredAt.IsZero() && i.State == record.Created && timedOut(s, i)
}

// checkWait checks that the decision says what the group waits for. A group waits for nothing if it has its
// size, all its instances are healthy, and nothing is planned or under way.
func checkWait(s plan.Snapshot, d plan.Decision) error {
	words := d.Wait.Words(s.Now)
	switch {
	case d.Wait.Resting && words != "", !d.Wait.Resting && words == "":
		return fmt.Errorf("resting: %t, but the sentence is %q", d.Wait.Resting, words)
	case strings.Contains(words, "is planned again"):
		return fmt.Errorf("no sentence says what the group waits for: %s", words)
	case !d.Wait.Resting:
		return nil
	case d.Blocked != "", d.Rollout != "", s.PendingCreates+s.PendingSpares > 0,
		len(d.Actions) > 0 && !onlyEvents(d.Actions):
		return fmt.Errorf("the group rests with %+v", d)
	}
	for n := range s.Instances {
		i := &s.Instances[n]
		preserved := !plan.PreservedUntil(&s.Group, i).IsZero()
		if i.Asleep() && i.Work == plan.Idle && i.Provider.Value == plan.ProviderStopped {
			continue
		}
		if i.Work != plan.Idle || !preserved && (!i.Healthy || i.State != record.Registered ||
			!i.LastReport.Add(2*s.Settings.HealthInterval).After(s.Now)) {
			return fmt.Errorf("the group rests with %+v", *i)
		}
	}
	return nil
}

// preservedOf counts the instances that are preserved and not deleted yet, and whose time is not over.
func preservedOf(s plan.Snapshot) (n int) {
	for k := range s.Instances {
		i := &s.Instances[k]
		recorded := !i.PreservedAt.IsZero() && i.State != record.Deleting && i.Work != plan.MarkingDeleting &&
			i.PreservedAt.Add(s.Group.Preserve.For.D()).After(s.Now)
		if recorded || i.PreservedAt.IsZero() && i.Work == plan.Preserving {
			n++
		}
	}
	return n
}

// counts is a second, independent implementation of the rule for which instances count towards a group's size.
func counts(s plan.Snapshot, i *plan.Instance) bool {
	if i.OnDemand || i.Spare && i.Work != plan.Promoting || i.State == record.Deleting ||
		i.Work == plan.MarkingDeleting || i.Work == plan.Preserving || !i.PreservedAt.IsZero() {
		return false
	}
	if i.State == record.Reserved || i.Work == plan.Creating && i.State == record.Created {
		return true
	}
	rests := !i.AsleepAt.IsZero() && !i.Woken
	switch i.Provider.Value {
	case plan.ProviderStopping, plan.ProviderStopped:
		if !rests {
			return false
		}
	case plan.ProviderGoing, plan.ProviderFailed:
		return false
	case plan.ProviderGone:
		if i.Provider.Complete {
			return false
		}
	}
	return !i.Notice && (i.PowerOffAt.IsZero() || i.PowerOffAt.Add(s.Settings.ShutdownGrace).After(s.Now))
}

func checkSize(s plan.Snapshot, desired, surge, counted, creates int, marked map[ident.ID]plan.Cause,
	reasons map[ident.ID]string) error {
	removed, unhealthy, registered, removedRegistered, lost, first := 0, 0, 0, 0, 0, 0
	running, silenced := 0, 0
	for n := range s.Instances {
		i := &s.Instances[n]
		cause := marked[i.ID]
		if i.OnDemand || i.Spare && i.Work != plan.Promoting {
			continue
		}
		failed := s.Group.RolledBack() && plan.Drifted(&s.Group, s.Image, i) // rule 71
		if r, silent := plan.CountSilence(i, s.Settings, s.SilenceFrom, s.Now); r && !failed {
			running++
			unwell := cause == plan.CauseUnhealthy || cause == plan.CauseHealthCheck ||
				cause == plan.CauseLoadBalancer || cause == plan.CauseFlapping
			if silent && (unwell || i.State == record.Deleting && (strings.Contains(i.DeleteReason, "silent") ||
				strings.Contains(i.DeleteReason, "health check fails") ||
				strings.Contains(i.DeleteReason, "unhealthy in load balancer"))) {
				unhealthy++
			}
			if unwell {
				silenced++
			}
		}
		if !counts(s, i) {
			continue
		}
		switch {
		case reasons[i.ID] != "" && strings.HasSuffix(reasons[i.ID], "max_unavailable lets it go first"):
			first++
		case voluntary[cause]:
			removed++
			if !i.RegisteredAt.IsZero() {
				removedRegistered++
			}
		case cause != "":
			lost++
		case !i.RegisteredAt.IsZero():
			registered++
		case creates > 0 && i.Work == plan.Idle && i.State == record.Created && timedOut(s, i):
			lost++ // its deletion has failed before and waits for the next attempt
		}
	}
	if first > s.Group.Rollout.MaxUnavailable {
		return fmt.Errorf("%d removed first, max_unavailable is %d: %v", first, s.Group.Rollout.MaxUnavailable, marked)
	}
	counted -= lost
	if removed > 0 && counted-removed < desired {
		return fmt.Errorf("%d of %d removed, the size is %d: %v", removed, counted, desired, marked)
	}
	if removedRegistered > 0 && registered < desired {
		return fmt.Errorf("only %d registered instances left of a size of %d: %v", registered, desired, marked)
	}
	if creates > 0 && counted-removed+creates > desired+surge {
		return fmt.Errorf("%d creates on top of %d, the size is %d with a surge of %d", creates, counted-removed,
			desired, surge)
	}
	if limit := s.Group.MaxUnhealthy.Of(running); silenced > 0 && unhealthy > limit {
		return fmt.Errorf("%d of %d running instances are removed for their silence, at most %d may", unhealthy,
			running, limit)
	}
	if until := s.Backoff.Until(s.Group.GroupKey); creates > 0 && until.After(s.Now) {
		return fmt.Errorf("%d creates while backing off until %s", creates, until)
	}
	return nil
}

func timedOut(s plan.Snapshot, i *plan.Instance) bool {
	from := s.SilenceFrom
	if from.IsZero() {
		from = s.LeaderSince
	}
	launched := i.LaunchedAt
	if from.After(launched) {
		launched = from
	}
	return !launched.Add(s.Settings.RegistrationTimeout + time.Nanosecond).After(s.Now.Add(time.Nanosecond))
}
