package plan

import (
	"math/rand"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// TestClassificationRules has one example for each rule of the table, and checks that every rule has one.
func TestClassificationRules(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	well := func(change func(*Instance)) Instance {
		i := Instance{State: record.Registered, CreatedAt: ago(time.Hour), LaunchedAt: ago(time.Hour),
			RegisteredAt: ago(59 * time.Minute), InfraHash: "v1", Healthy: true, EverHealthy: true, Connected: true,
			LastReport: ago(time.Second), Provider: Observed[ProviderState]{Value: ProviderRunning, Complete: true,
				At: now}}
		if change != nil {
			change(&i)
		}
		return i
	}
	silent := func(i *Instance) {
		i.LastReport, i.Connected, i.LostAt = ago(10*time.Minute), false, ago(10*time.Minute)
	}
	failing := func(i *Instance) {
		i.Healthy, i.FailedCheck, i.CheckFailedAt = false, "web: status 503, want 200", ago(time.Second)
	}
	refused := func(i *Instance) {
		failing(i)
		i.FailedCheck = "load balancer web: Target.Timeout"
		i.Balancer = BalancerHealth{WasHealthy: true, Rounds: balancerRounds, Failed: i.FailedCheck}
	}
	flapping := func(i *Instance) { i.Lapses = Lapses{ago(59 * time.Minute), flappingFrom} }
	recommended := func(i *Instance) { i.Recommended = true }
	maintained := func(i *Instance) { i.Maintenance, i.MaintenanceAt = "system-reboot", ago(-7*24*time.Hour) }
	advised := config.Purchase{OnRecommendation: config.OnNoticeReplace}
	booting := func(*Instance) {}
	var ids [2]ident.ID
	for n := range ids {
		var err error
		if ids[n], err =
			ident.NewID("knd", now.Add(time.Duration(n)*time.Second), rand.New(rand.NewSource(1))); err != nil {
			t.Fatal(err)
		}
	}
	ended := func(i *Instance) { i.Provider.Value = ProviderStopped }
	unregistered := func(i *Instance) {
		i.State, i.RegisteredAt, i.LastReport = record.Created, time.Time{}, time.Time{}
	}
	seen := map[uint8]bool{}
	for _, c := range []struct {
		rule    int
		name    string
		i       Instance
		guarded bool
		// protected means that the instance is protected. replaced, if not nil, changes the booting instance that
		// replaces it because it failed.
		protected bool
		replaced  func(*Instance)
		ages      func(*Settings)
		image     string
		off       bool // on_image_change
		purchase  config.Purchase
	}{
		{rule: 1, name: "the intent is durable", i: well(func(i *Instance) { i.State = record.Deleting })},
		{rule: 1, name: "the intent is being written, and the VM is gone", i: well(func(i *Instance) {
			i.Work, i.Provider.Value = MarkingDeleting, ProviderGone
		})},
		{rule: 67, name: "preserved, and silent", i: well(func(i *Instance) {
			silent(i)
			i.PreservedAt = ago(time.Hour)
		})},
		{rule: 67, name: "preserved, and it recovered", i: well(func(i *Instance) {
			i.PreservedAt, i.Work = ago(time.Hour), Preserving
		})},
		{rule: 1, name: "the intent to preserve is being written", i: well(func(i *Instance) { i.Work = Preserving })},
		{rule: 1, name: "it was preserved, and its deletion is durable", i: well(func(i *Instance) {
			i.PreservedAt, i.State = ago(time.Hour), record.Deleting
		})},
		{rule: 2, name: "reserved", i: Instance{State: record.Reserved, Work: Creating}},
		{rule: 3, name: "a notice", i: well(func(i *Instance) { i.Notice = true })},
		{rule: 4, name: "a power-off without grace", i: well(func(i *Instance) { i.PowerOffAt = now })},
		{rule: 5, name: "ended before it registered", i: well(func(i *Instance) { unregistered(i); ended(i) })},
		{rule: 6, name: "ended", i: well(ended)},
		{rule: 7, name: "registration is overdue", i: well(unregistered)},
		{rule: 8, name: "past ondemand_age", i: well(func(i *Instance) { i.OnDemand = true }),
			ages: func(s *Settings) { s.OnDemandAge = time.Minute }},
		{rule: 9, name: "on demand and silent", i: well(func(i *Instance) { i.OnDemand = true; silent(i) })},
		{rule: 10, name: "past forced_age and silent", i: well(silent),
			ages: func(s *Settings) { s.ForcedAge = time.Minute }},
		{rule: 11, name: "silent while the guard holds", i: well(silent), guarded: true},
		{rule: 12, name: "silent", i: well(silent)},
		{rule: 12, name: "never healthy", i: well(func(i *Instance) { i.Healthy, i.EverHealthy = false, false })},
		{rule: 11, name: "a failing check while the guard holds", i: well(failing), guarded: true},
		{rule: 12, name: "a failing check, then silent", i: well(func(i *Instance) { failing(i); silent(i) })},
		{rule: 52, name: "a failing check", i: well(failing)},
		{rule: 52, name: "a failing check, drifted", i: well(func(i *Instance) { failing(i); i.InfraHash = "v0" })},
		{rule: 52, name: "a failing check, never healthy in its time", i: well(func(i *Instance) {
			failing(i)
			i.EverHealthy = false
		})},
		{rule: 59, name: "unhealthy in a load balancer", i: well(refused)},
		{rule: 59, name: "unhealthy in a load balancer, drifted", i: well(func(i *Instance) {
			refused(i)
			i.InfraHash = "v0"
		})},
		{rule: 52, name: "a failing check, and unhealthy in a load balancer", i: well(func(i *Instance) {
			refused(i)
			failing(i)
		})},
		{rule: 11, name: "unhealthy in a load balancer while the guard holds", i: well(refused), guarded: true},
		{rule: 12, name: "unhealthy in a load balancer, then silent", i: well(func(i *Instance) {
			refused(i)
			silent(i)
		})},
		{rule: 17, name: "unhealthy in a load balancer once", i: well(func(i *Instance) { i.Balancer.Rounds = 1 })},
		{rule: 14, name: "a failing check, never healthy, and its time is not over", i: well(func(i *Instance) {
			failing(i)
			i.EverHealthy, i.RegisteredAt = false, ago(4*time.Minute)
		})},
		{rule: 14, name: "never healthy, in the start period of its checks", i: well(func(i *Instance) {
			i.Healthy, i.EverHealthy, i.ChecksPending, i.RegisteredAt = false, false, true, ago(6*time.Minute)
		})},
		{rule: 13, name: "drifted and unhealthy", i: well(func(i *Instance) { i.Healthy, i.InfraHash = false, "v0" })},
		{rule: 14, name: "unhealthy for now", i: well(func(i *Instance) { i.Healthy = false })},
		{rule: 14, name: "absent from an incomplete list does not count as gone", i: well(func(i *Instance) {
			i.Provider, i.Connected = Observed[ProviderState]{Value: ProviderGone}, false
		})},
		{rule: 15, name: "drifted and past eligible_age", i: well(func(i *Instance) { i.InfraHash = "v0" }),
			ages: func(s *Settings) { s.EligibleAge = time.Minute }},
		{rule: 13, name: "in a subnet that left the pool, and unhealthy", i: well(func(i *Instance) {
			i.Healthy, i.SubnetID = false, "s3"
		})},
		{rule: 15, name: "in a subnet that left the pool", i: well(func(i *Instance) { i.SubnetID = "s3" })},
		{rule: 17, name: "in the last subnet of the pool", i: well(func(i *Instance) { i.SubnetID = "s2" })},
		{rule: 15, name: "the image is outdated (rule 55)", i: well(func(i *Instance) { i.Image = "ami-1" }),
			image: "ami-2"},
		{rule: 17, name: "the image is current", i: well(func(i *Instance) { i.Image = "ami-2" }), image: "ami-2"},
		{rule: 17, name: "no image was found yet", i: well(func(i *Instance) { i.Image = "ami-1" })},
		{rule: 17, name: "its image is unknown", i: well(nil), image: "ami-2"},
		{rule: 17, name: "on_image_change is off", i: well(func(i *Instance) { i.Image = "ami-1" }), image: "ami-2",
			off: true},
		{rule: 65, name: "the cloud recommends replacing it", purchase: advised, i: well(recommended)},
		{rule: 65, name: "recommended, and its last report is late", purchase: advised, i: well(func(i *Instance) {
			recommended(i)
			i.LastReport = ago(90 * time.Second)
		})},
		{rule: 17, name: "recommended, and the group ignores that", i: well(recommended)},
		{rule: 17, name: "recommended, protected", purchase: advised, protected: true, i: well(recommended)},
		{rule: 15, name: "recommended, drifted", purchase: advised, i: well(func(i *Instance) {
			recommended(i)
			i.InfraHash = "v0"
		})},
		{rule: 3, name: "recommended, then interrupted", purchase: advised, i: well(func(i *Instance) {
			recommended(i)
			i.Notice = true
		})},
		{rule: 66, name: "maintenance in a week", i: well(maintained)},
		{rule: 66, name: "maintenance, drifted", i: well(func(i *Instance) {
			maintained(i)
			i.InfraHash = "v0"
		})},
		{rule: 12, name: "maintenance, silent", i: well(func(i *Instance) {
			maintained(i)
			silent(i)
		})},
		{rule: 14, name: "maintenance, never healthy", i: well(func(i *Instance) {
			maintained(i)
			i.Healthy, i.EverHealthy, i.RegisteredAt = false, false, ago(time.Minute)
		})},
		{rule: 17, name: "maintenance, protected", protected: true, i: well(maintained)},
		{rule: 16, name: "past eligible_age", i: well(nil), ages: func(s *Settings) { s.EligibleAge = time.Minute }},
		{rule: 58, name: "bought on demand in a group of spot instances", i: well(nil),
			purchase: config.Purchase{SpotPercent: 100, ReturnToSpot: config.Duration(time.Minute)}},
		{rule: 17, name: "bought on demand, and too young", i: well(nil),
			purchase: config.Purchase{SpotPercent: 100, ReturnToSpot: config.Duration(48 * time.Hour)}},
		{rule: 17, name: "the base is bought on demand", i: well(nil), purchase: config.Purchase{SpotPercent: 100,
			OnDemandBase: 1, ReturnToSpot: config.Duration(time.Minute)}},
		{rule: 62, name: "it recovered, and its replacement boots", i: well(nil), replaced: booting},
		{rule: 12, name: "it is silent, and its replacement boots", i: well(silent), replaced: booting},
		{rule: 11, name: "it recovered, and the guard holds", i: well(nil), replaced: booting, guarded: true},
		{rule: 17, name: "its replacement did not register", i: well(nil), replaced: func(i *Instance) {
			booting(i)
			i.LaunchedAt = ago(6 * time.Minute)
		}},
		{rule: 17, name: "the VM of its replacement ended", i: well(nil), replaced: func(i *Instance) {
			booting(i)
			i.Provider.Value = ProviderStopped
		}},
		{rule: 63, name: "five reboots within an hour", i: well(flapping)},
		{rule: 11, name: "five reboots, and the guard holds", i: well(flapping), guarded: true},
		{rule: 17, name: "four reboots", i: well(func(i *Instance) { i.Lapses = Lapses{ago(time.Minute), 4} })},
		{rule: 17, name: "five reboots more than an hour ago", i: well(func(i *Instance) {
			i.Lapses = Lapses{ago(time.Hour), 5}
		})},
		{rule: 17, name: "five reboots of a protected instance", protected: true, i: well(flapping)},
		{rule: 77, name: "a spare", i: well(func(i *Instance) { i.Spare = true })},
		{rule: 80, name: "a spare past max_age", i: well(func(i *Instance) {
			i.Spare, i.LaunchedAt = true, ago(48*time.Hour)
		})},
		{rule: 12, name: "a silent spare", i: well(func(i *Instance) {
			silent(i)
			i.Spare = true
		})},
		{rule: 2, name: "a spare that becomes a member", i: well(func(i *Instance) {
			i.Spare, i.Work = true, Promoting
		})},
		{rule: 80, name: "a spare of another state", i: well(func(i *Instance) {
			i.Spare, i.Sleep = true, config.SparesStopped
		})},
		{rule: 84, name: "a member that cannot be woken", i: well(func(i *Instance) {
			i.Sleep, i.AsleepAt, i.PromotedAt = config.SparesStopped, ago(time.Hour), ago(time.Second)
			i.WakeFailed = "gone"
		})},
		{rule: 14, name: "a member that is being woken", i: well(func(i *Instance) {
			i.Sleep, i.AsleepAt, i.PromotedAt = config.SparesStopped, ago(time.Hour), ago(time.Second)
			i.Provider.Value = ProviderStopped
		})},
		{rule: 17, name: "well", i: well(nil)},
	} {
		s := Snapshot{Now: now, LeaderSince: ago(time.Hour), SilenceFrom: ago(time.Hour),
			Settings: Settings{HealthInterval: time.Minute, RegistrationTimeout: 5 * time.Minute,
				RequestTimeout: time.Minute},
			Group: config.Group{Size: 1, InfraHash: "v1", Subnets: []string{"s1", "s2"},
				HealthChecks: map[string]config.HealthCheck{"web": {StartPeriod: config.Duration(2 * time.Minute)}},
				Spares:       config.Spares{Count: 1, MaxAge: config.Duration(36 * time.Hour)},
				MaxUnhealthy: config.Limit{Value: 9}},
			Instances: []Instance{c.i}, Image: c.image}
		s.Group.Rollout.OnImageChange, s.Group.Purchase = !c.off, c.purchase
		if c.ages != nil {
			c.ages(&s.Settings)
		}
		if c.guarded {
			s.Shard = ShardHealth{Running: 9, Silent: 9}
		}
		s.Instances[0].ID = ids[0]
		if c.protected {
			s.Group.Protected = ids[:1]
		}
		if c.replaced != nil {
			other := Instance{ID: ids[1], State: record.Created, Finishes: ids[0], CreatedAt: ago(time.Minute),
				LaunchedAt: ago(time.Minute), Provider: c.i.Provider}
			c.replaced(&other)
			s.Instances = append(s.Instances, other)
		}
		row := classifyGroup(s).rows[0]
		if rules[row].number != c.rule {
			t.Errorf("%s: rule %d (%s), want rule %d", c.name, rules[row].number, rules[row].name, c.rule)
		}
		seen[row] = true
	}
	if len(seen) != len(rules) {
		t.Errorf("%d of %d rules have an example", len(seen), len(rules))
	}
}
