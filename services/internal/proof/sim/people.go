package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

const (
	kind      = "knd"
	template  = "t"
	asking    = "b" // as template, with load_balancer_health
	hooked    = "d" // as template, with a drain hook
	minute    = time.Minute
	retention = 10 * time.Minute // of tombstones
	// unusedRetention is how long a tombstone is kept if its reservation was never used.
	unusedRetention = 2 * time.Minute
	// registrationTime is the time limit for an agent's registration.
	registrationTime = 90 * time.Second
)

// people change the configuration, as `tofu apply` and nstance-admin do. They also create and delete instances, and
// drain nodes. No server may lose a change that a server has acknowledged to them.
type people struct {
	world    *World
	groups   []*spec
	versions map[objstore.Token]int // number of each configuration by its token
	version  int                    // the latest version
	sound    bool                   // the latest version is valid
	applied  int                    // the highest version that a leader has applied
	image    int                    // the newest machine image

	expiry      bool
	terminating bool
	rate        bool // creates are rate limited
	rebalanced  bool // the load balancers of a group were changed

	dynamic  map[config.GroupKey]*wish
	onDemand map[ident.ID]*wish
	drained  map[ident.ID]bool
	// protected maps each protected instance to the time at which a server acknowledged the protection.
	protected map[ident.ID]time.Time
	trial     *trial                          // nil: none
	rolled    map[config.GroupKey][]time.Time // when the replacement of each outdated instance was decided on
}

// spec is one static group.
type spec struct {
	key            config.GroupKey
	absent         bool
	size, surge    int
	drain          int // seconds
	infra, runtime int
	balancers      []string
	asks           bool // load_balancer_health, while it has load balancers
	hooked         bool // its VMs have a drain hook
	rollout        config.Rollout
	disruption     config.Disruption
	schedules      []config.Schedule
	purchase       *config.Purchase
	ignores        bool // maintenance
	preserve       config.Preserve
	scaling        *scaled // nil: leaders do not scale it
	spares         config.Spares
}

// wish is the latest request for a dynamic group or an on-demand instance, and whether a server acknowledged it.
type wish struct {
	size    int
	deleted bool
	acked   bool
}

func newPeople(w *World) people {
	keeps, scales := w.dice("preserves").IntN(3) == 0, w.dice("scales").IntN(6) == 0 && !w.opts.Limited
	spares := w.dice("with spares").IntN(3) == 0
	p := people{world: w, versions: map[objstore.Token]int{}, dynamic: map[config.GroupKey]*wish{},
		onDemand: map[ident.ID]*wish{},
		drained:  map[ident.ID]bool{}, protected: map[ident.ID]time.Time{}, rolled: map[config.GroupKey][]time.Time{}}
	rng := &w.drawn
	for i := range 1 + rng.IntN(4) {
		tenant := "default"
		if rng.IntN(4) == 0 {
			tenant = "other"
		}
		g := &spec{key: config.GroupKey{Tenant: tenant, Group: fmt.Sprintf("g%d", i+1)}, size: rng.IntN(7), surge: 1 +
			rng.IntN(2)}
		if rng.IntN(4) == 0 {
			g.size = 1
		}
		if rng.IntN(2) == 0 {
			g.drain = 10 + rng.IntN(60)
		}
		if rng.IntN(3) == 0 {
			g.balancers = []string{"lb1"}
		}
		if d := w.dice("load balancer health", uint64(i)); d.IntN(3) == 0 {
			g.asks, g.balancers = true, []string{"lb1"}
		}
		g.hooked = g.drain > 0 && !g.asks && w.dice("drain hook", uint64(i)).IntN(2) == 0
		g.drawRollout(w.dice("rollout", uint64(i)), w.opts.Limited)
		g.drawPurchase(w.dice("purchase", uint64(i)))
		g.drawAdvice(w.dice("advice", uint64(i)))
		if keeps {
			g.drawPreserve(w.dice("preserve", uint64(i)))
		}
		if scales {
			g.drawScaling(w.dice("scaling", uint64(i)))
		}
		if spares {
			g.drawSpares(w.dice("spares", uint64(i)))
		}
		p.groups = append(p.groups, g)
	}
	p.rate = rng.IntN(5) == 0
	return p
}

// document returns the configuration that people want at present.
func (p *people) document() []byte {
	duration := func(d time.Duration) *config.Duration { v := config.Duration(d); return &v }
	s := config.Shard{
		Cluster: config.Cluster{ID: clusterName, Secrets: config.Secrets{
			EncryptionKey: &config.KeySource{Provider: "env"}}},
		Server: config.Server{Shard: shardName, Provider: config.Provider{Kind: "mock"},
			SubnetPools:         map[string][]string{"p": {"a", "b"}},
			HealthCheckInterval: duration(p.world.reportInterval), DefaultDrainTimeout: duration(10 * time.Second),
			GarbageCollection: config.GarbageCollection{Interval: duration(30 * time.Second),
				RegistrationTimeout:    duration(registrationTime),
				DeletedRecordRetention: duration(retention)}},
		Tenants:       map[string]config.Tenant{"other": {}},
		LoadBalancers: map[string]config.LoadBalancer{"lb1": {Provider: "mock"}, "lb2": {Provider: "mock"}},
		Templates: map[string]config.Template{template: {}, asking: {LoadBalancerHealth: true},
			hooked: {Drain: &config.DrainHook{Exec: []string{"drain"}}}},
		Groups:      map[string]map[string]config.GroupSpec{},
		Terminating: p.terminating,
	}
	for name, t := range s.Templates {
		t.Kind, t.Arch, t.InstanceType, t.InstanceTypes, t.SubnetPool = kind, "amd64", "small", []string{"large"}, "p"
		t.HealthChecks = map[string]config.HealthCheck{"web": {Exec: []string{"true"}}}
		t.Tenants = []string{"default", "other"}
		s.Templates[name] = t
	}
	if p.expiry {
		s.Server.Expiry = config.Expiry{EligibleAge: duration(6 * time.Minute), ForcedAge: duration(15 * time.Minute),
			OnDemandAge: duration(10 * time.Minute)}
	}
	if p.rate {
		s.Server.CreateRateLimit = duration(2 * time.Second)
	}
	for _, g := range p.groups {
		if g.absent {
			continue
		}
		if s.Groups[g.key.Tenant] == nil {
			s.Groups[g.key.Tenant] = map[string]config.GroupSpec{}
		}
		from := template
		switch {
		case g.asksBalancers():
			from = asking
		case g.hooked:
			from = hooked
		}
		spec := config.GroupSpec{Template: from, Size: &g.size, MaxSurge: &g.surge,
			DrainTimeout: duration(time.Duration(g.drain) * time.Second), LoadBalancers: g.balancers,
			Rollout: &g.rollout, Disruption: g.limits(), Schedules: g.schedules, Purchase: g.purchase,
			Preserve: g.preserved(), Spares: &g.spares,
			Vars: map[string]string{"v": fmt.Sprint(g.runtime), "version": ""},
			Args: map[string]any{"image": g.infra}}
		if g.purchase != nil { // clouds keep no spot instances that sleep
			spec.Spares = &config.Spares{Count: g.spares.Count, MaxAge: g.spares.MaxAge}
		}
		g.scaling.configure(&spec)
		s.Groups[g.key.Tenant][g.key.Group] = spec
	}
	body, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return append(body, fmt.Sprintf("\n// version %d\n", p.version)...)
}

// apply writes the configuration to the bucket, as `tofu apply` does.
func (p *people) apply() {
	p.version++
	p.sound = true
	p.write(p.document())
}

func (p *people) write(body []byte) {
	token, err := p.world.store.Put(p.world.outside, keys.Config(shardName), body, objstore.Always())
	if err != nil {
		panic(err)
	}
	p.versions[token] = p.version
}

// act does one action of people or of the operator.
func (p *people) act(moment uint64, k Kind, l *server, d *dice) {
	w := p.world
	g := p.groups[d.IntN(len(p.groups))]
	ofOperator := k == groupChanged || k == madeOne || k == removedOne || k == protectedOne
	if ofOperator && l == nil || !w.faults.admit(moment, k) {
		return
	}
	switch k {
	case resize:
		g.size = d.IntN(7)
	case newInfra:
		g.infra++
	case newRuntime:
		g.runtime++
	case newImage:
		p.image++
		w.faults.about("image %d", p.image)
		return
	case newRollout:
		g.drawRollout(d, w.opts.Limited)
		g.infra += d.IntN(2)
	case groupGone:
		g.absent = !g.absent
	case rebalance:
		p.rebalanced = true
		g.balancers = [][]string{nil, {"lb1"}, {"lb1", "lb2"}}[d.IntN(3)]
	case expiryOn:
		p.expiry = !p.expiry
	case emptying:
		p.terminating = !p.terminating && d.IntN(3) == 0
	case invalid:
		p.version++
		p.sound = false
		p.write(append(p.document(), '}'))
		w.faults.about("version %d", p.version)
		return
	case groupChanged:
		p.change(l, d)
		return
	case madeOne:
		id := ident.ID{}
		if d.IntN(2) == 0 {
			id = w.freshID(d)
		}
		p.create(l.term, g.key, id, 3, d)
		return
	case removedOne:
		p.remove(l.term, d)
		return
	case protectedOne:
		p.protect(l.term, d)
		return
	}
	p.apply()
	w.faults.about(
		"version %d: group %s: absent %t, size %d, infra %d, runtime %d, balancers %v; expiry %t, terminating %t",
		p.version, g.key, g.absent, g.size,
		g.infra, g.runtime, g.balancers, p.expiry, p.terminating)
	if d.chance(0.5) && l != nil {
		l.term.env.Go("refresh", l.term.refresh)
	}
}

// change creates, scales or deletes a dynamic group.
func (p *people) change(s *server, d *dice) {
	w, t := p.world, s.term
	key := config.GroupKey{Tenant: "default", Group: fmt.Sprintf("d%d", 1+d.IntN(2))}
	have := p.dynamic[key]
	next := &wish{size: d.IntN(4), deleted: d.IntN(3) == 0 && have != nil}
	p.dynamic[key] = next
	if next.deleted { // the next definition of the group protects nothing
		maps.DeleteFunc(p.protected, func(id ident.ID, _ time.Time) bool { return w.fleet.byInstance[id].key == key })
	}
	w.faults.about("group %s: size %d, gone %t", key, next.size, next.deleted)
	t.env.Go("change a group", func() {
		err := t.manage(func(m *shardconfig.Manager) error {
			if next.deleted {
				_, err := m.Delete(t.scope, key, "")
				return err
			}
			_, err := m.Upsert(t.scope, key, "", config.Caller{}, func(spec *config.GroupSpec, _ bool) error {
				spec.Template, spec.Size = template, &next.size
				return nil
			})
			return err
		})
		w.trace("group %s: %v", key, err)
		next.acked = err == nil
	})
}

// create makes an on-demand instance. If the answer is lost, it tries again with the same ID.
func (p *people) create(t *term, key config.GroupKey, id ident.ID, tries int, d *dice) {
	w := p.world
	w.trace("a client requests an instance %s of %s", id, key)
	answered := false
	t.env.Go("create an instance", func() {
		made, err := t.leader.CreateInstance(t.scope, key, id, "", nil)
		answered = true
		w.trace("instance %s of %s: %v", made, key, err)
		if err != nil {
			return
		}
		d := w.bucket.byID[made]
		if d == nil || d.removed || !d.OnDemand || d.State == record.Reserved {
			w.fail(ruleAcked, "the creation of %s is acknowledged, but its record says %+v", made, d)
		}
		p.onDemand[made] = &wish{acked: true}
	})
	if id.IsZero() || tries == 0 {
		return
	}
	w.sched.after(d.between(5*time.Second, 40*time.Second), func() {
		if s := w.acting(); !answered && s != nil {
			p.create(s.term, key, id, tries-1, d)
		}
	})
}

// remove deletes a random instance. If the answer is lost, it tries again.
func (p *people) remove(t *term, d *dice) {
	w := p.world
	m := w.fleet.any(d)
	if m == nil {
		return
	}
	w.faults.about("%s", m.id)
	p.removeOne(t, m.id)
	if again := d.between(time.Second, 20*time.Second); d.IntN(2) == 0 {
		w.sched.after(again, func() {
			if s := w.acting(); s != nil {
				p.removeOne(s.term, m.id)
			}
		})
	}
}

func (p *people) removeOne(t *term, id ident.ID) {
	w := p.world
	t.env.Go("delete an instance", func() {
		t.deleting[id]++
		err := t.leader.DeleteInstance(t.scope, id, requested)
		t.deleting[id]--
		w.trace("deletion of %s: %v", id, err)
		if d := w.bucket.byID[id]; err == nil && d != nil && d.stays() {
			w.fail(ruleAcked, "the deletion of %s is acknowledged, but its record says %s", id, d.State)
		}
	})
}

// confirm allows the leader to delete orphans when there are too many to delete without a confirmation.
func (p *people) confirm() {
	s := p.world.acting()
	if s == nil {
		return
	}
	for _, e := range s.term.leader.State.Standing("") {
		if e.Kind == "orphans" {
			p.world.trace("a person confirms the orphans")
			for _, vm := range s.term.leader.State.ConfirmOrphans() {
				s.term.confirmed[vm.ProviderID] = true
			}
		}
	}
}

// settle makes the configuration of the shard valid. It also removes settings with which instances might never
// converge, such as an expiry or a paused rollout.
func (p *people) settle() {
	p.expiry, p.terminating = false, false
	if p.trial != nil {
		p.trial.settle()
	}
	for _, g := range p.groups {
		g.preserve.For = min(g.preserve.For, restingFor)
		g.spares.MaxAge = 0
		if p.trial != nil && p.trial.kept && p.trial.group == g {
			continue
		}
		g.rollout, g.disruption = config.Rollout{MaxUnavailable: g.rollout.MaxUnavailable,
			OnImageChange: g.rollout.OnImageChange}, config.Disruption{}
	}
	p.apply()
}
