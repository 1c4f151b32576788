//go:build mutation

package sim

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// mutant is one deliberate bug in the real code. It exists nowhere but here: the test binary is built with the text
// changed.
type mutant struct {
	name string
	file string // below services
	old  string // found exactly once
	new  string
	why  string // what the bug is
	// quick ones make the short form.
	quick bool
}

var mutants = []mutant{
	// The plan.
	{name: "guard off", file: "internal/plan/guard.go",
		old: "return g.tally.late > g.Group.MaxUnhealthy.Of(g.tally.running) || shardGuardHolds(g.Shard)",
		new: "return false",
		why: "however many instances fall silent at once, all are replaced"},
	{name: "group guard off", file: "internal/plan/guard.go",
		old: "return g.tally.late > g.Group.MaxUnhealthy.Of(g.tally.running) || shardGuardHolds(g.Shard)",
		new: "return shardGuardHolds(g.Shard)",
		why: "only silence of the whole shard is held against the leader, not of a group"},
	{name: "unproven replacement", file: "internal/plan/classify.go",
		old: "\treturn !i.RegisteredAt.IsZero() && i.reportsInTime(s, now)",
		new: "\treturn !i.RegisteredAt.IsZero() && (i.reportsInTime(s, now) || i.LastReport.IsZero())",
		why: "what runs is removed as soon as its replacement has registered, well or not"},
	{name: "going counted", file: "internal/plan/size.go",
		old: "surplus := t.total() - g.desired\n",
		new: "surplus := t.total() + t.of[classOnDemand] + t.of[classLeaving] - g.desired\n",
		why: "instances that are going already count towards what is too many"},
	{name: "no place for failing", file: "internal/plan/replace.go",
		old: "total := t.total() + t.failing", new: "total := t.total()",
		why: "what is to go makes room before its deletion is durable"},
	{name: "removed makes room", file: "internal/plan/replace.go",
		old: "above := max(0, total-g.desired)", new: "above := max(0, total-removed.planned-g.desired)",
		why: "what was chosen for removal makes room for another's replacement before its deletion is durable"},
	{name: "surge unbounded", file: "internal/plan/replace.go",
		old: "surge := min(g.surge, t.replaceFirst()-removed.replaceFirst)",
		new: "surge := t.replaceFirst() - removed.replaceFirst",
		why: "every silent or expired instance gets its replacement at once, whatever max_surge says"},
	{name: "drain cut short", file: "internal/plan/drain.go", quick: true,
		old: "case IsDraining(i, g.Now): // rule 27",
		new: "case i.runs() && !i.Drained && !i.Announced:",
		why: "an instance is terminated as soon as its drain was announced"},
	{name: "absent is gone", file: "internal/plan/transitions.go",
		old: "if i.awaitsCreate() || a.Asked.Before(latest(i.CreatedAt, i.LaunchedAt).Add(absenceGrace)) {",
		new: "if i.awaitsCreate() {",
		why: "a VM that the provider does not list yet is taken to be gone"},
	{name: "orphans unlimited", file: "internal/plan/collect.go",
		old: "many = orphans > fewOrphans && 100*orphans > orphanPercent*s.Listed.Value",
		new: "many = orphans > 1000",
		why: "any number of VMs without a record is terminated without a question"},
	{name: "orphan read once", file: "internal/plan/collect.go",
		old: "if !stray.Reads[len(stray.Reads)-1].Before(second) {", new: "if len(stray.Reads) > 0 {",
		why: "a VM whose record may be on its way is terminated"},
	{name: "tombstones removed early", file: "internal/plan/collect.go", quick: true,
		old: "due := t.DeletedAt.Add(retention)", new: "due := t.DeletedAt.Add(retention / 2)",
		why: "an instance ID may live again while its VM may still appear"},
	// The executor.
	{name: "no proof", file: "internal/execute/execute.go",
		old: "if err := x.Authority.Confirm(ctx); err != nil {", new: "if err := error(nil); err != nil {",
		why: "a VM is terminated without asking whether somebody else leads by now"},
	{name: "told before durable", file: "internal/execute/execute.go", quick: true,
		old: "\tmarked := false\n",
		new: "\tmarked := false\n\tx.World.Publish(shardstate.InstanceEvent{Type: shardstate.EventPendingDeletion, " +
			"Instance: action.Instance})\n",
		why: "the end of an instance is announced before it is durable"},
	{name: "drain untold", file: "internal/execute/execute.go",
		old: "Deadline: action.Deadline, Drain: true})", new: "Deadline: action.Deadline})",
		why: "nobody is told to drain a node"},
	{name: "acts for ever", file: "internal/execute/execute.go",
		old: "if x.Authority.Remaining() < margin {", new: "if x.Authority.Remaining() < -time.Hour {",
		why: "calls are begun when the lease is over"},
	{name: "stays in balancers", file: "internal/execute/execute.go",
		old: "switch err := x.unbalance(ctx, action.Instance); infra.ClassOf(err) {",
		new: "switch err := error(nil); infra.ClassOf(err) {",
		why: "an instance whose VM is gone is forgotten while it is a load balancer's member"},
	{name: "reservation not awaited", file: "internal/execute/create.go",
		old: "\trec := x.reservation(id, pool.Tenant)\n\ttoken, err := x.Store.PutInstance(ctx, rec, \"\")\n",
		new: "\trec := x.reservation(id, pool.Tenant)\n\ttoken := " +
			"shardstate.Reservation{}.Token\n\tx.Env.Go(\"reserve\", func() { _, _ = x.Store.PutInstance(ctx, rec, " +
			"\"\") })\n",
		why: "a VM may be asked for before its reservation is durable"},
	{name: "unknown is refused", file: "internal/execute/create.go",
		old: "case class == infra.Indeterminate || class == infra.Throttled:", new: "case class == infra.Throttled:",
		why: "a create call without an answer is taken for a refusal"},
	{name: "refused is never made", file: "internal/execute/create.go",
		old: "case class == infra.Conflict || ambiguous:",
		new: "case class == infra.Conflict || ambiguous && class == infra.Conflict:",
		why: "a refusal is believed although an earlier call had no answer"},
	{name: "registered becomes created", file: "internal/execute/create.go",
		old: "\tif r.State == record.Reserved {\n\t\tr.State = record.Created\n\t}\n\tr.Group",
		new: "\tr.State = record.Created\n\tr.Group",
		why: "the provider's answer undoes the registration that came before it"},
	{name: "settled unasked", file: "internal/execute/collect.go",
		old: "\tif err != nil && !errors.Is(err, infra.NotFound) {\n\t\treturn err\n\t}\n\tnext := left.Record\n",
		new: "\tnext := left.Record\n",
		why: "an old reservation is buried when the provider does not answer"},
	// The picture.
	{name: "used twice", file: "internal/shardstate/reservations.go",
		old: "w.reserved[pool] = have[1:]", new: "w.reserved[pool] = have",
		why: "a reservation stays in its pool when it is used"},
	{name: "unsettled not counted", file: "internal/shardstate/snapshot.go",
		old: "g.pending + w.unsettled(key)", new: "g.pending",
		why: "VMs that an earlier leader asked for and that are about to be adopted are made a second time"},
	{name: "late drain", file: "internal/plan/transitions.go",
		old: "lateDrain = 30 * time.Second", new: "lateDrain = 0 * time.Second",
		why: "a leader that learns late of a deletion ends the VM at once"},
	{name: "late drain untold", file: "internal/plan/drain.go",
		old: "if !i.Announced {", new: "if !i.Announced && g.Now.Before(i.DeletingAt.Add(3*time.Second)) {",
		why: "a leader that learns late of a deletion leaves the node its time, but tells nobody"},
	// The leader.
	{name: "strays unread", file: "internal/leader/takeover.go",
		old: "return l.readStrays(ctx)", new: "return nil",
		why: "a new leader trusts the bucket's list to be complete"},
	{name: "deadline moves", file: "internal/plan/transitions.go",
		old: "if rec.State == record.Deleting || rec.State == record.Deleted {",
		new: "if rec.State == record.Deleted {",
		why: "deleting twice gives a drain a new deadline"},
	{name: "address taken once", file: "internal/leader/address.go",
		old: "wait := addressCheck", new: "wait := 24 * time.Hour",
		why: "an address that is lost is not taken again"},
	// Groups and configuration.
	{name: "applied unrecorded", file: "internal/shardconfig/shardconfig.go",
		old: "\tif err := m.record(ctx, doc); err != nil {\n\t\treturn Unchanged, nil, err\n\t}\n", new: "",
		why: "the next leader may go back to an older configuration"},
	{name: "acknowledged too early", file: "internal/shardconfig/groups.go",
		old: "\tif !errors.Is(err, objstore.ErrConflict) {\n\t\treturn false, fmt.Errorf(\"write the dynamic " +
			"groups: %w\", err)\n\t}\n",
		new: "\tif !errors.Is(err, objstore.ErrConflict) {\n\t\treturn true, nil\n\t}\n",
		why: "a change of a group is acknowledged although its write was not"},
	{name: "writes over others", file: "contract/clusterstate/state.go",
		old: "cond = objstore.IfToken(token)", new: "cond = objstore.Always()",
		why: "documents are written whatever is there"},
	// The election.
	{name: "impatient", file: "internal/election/lease.go", quick: true,
		old: "return lease + lease*6/100", new: "return lease - lease/10",
		why: "a candidate does not wait for the end of the lease"},
	{name: "lease from the answer", file: "internal/election/write.go",
		old: "\tcase e.role == Leader:\n\t\te.adopt(w)\n",
		new: "\tcase e.role == Leader:\n\t\tw.began = now\n\t\te.adopt(w)\n",
		why: "a leader counts its lease from the renewal's answer"},
	{name: "unknown is won", file: "internal/election/elector.go",
		old: "\t\te.stale = true\n\t\te.backOff(now)\n\tcase MachineAnswer:",
		new: "\t\te.won(now, e.seen.token, &d)\n\tcase MachineAnswer:",
		why: "a write of the lock without an answer is taken for a success"},
	{name: "running is gone", file: "internal/election/watch.go",
		old: "case state == MachineTerminated:", new: "case state == MachineTerminated || state == MachineRunning:",
		why: "the lock of a running machine is taken"},
	{name: "term stays", file: "internal/election/write.go",
		old: "lock.Term = e.floor + 1", new: "lock.Term = max(e.floor, 1)",
		why: "a new leader leads in the term of the one before"},
	// The heir.
	{name: "unpromised", file: "internal/election/heir.go", quick: true,
		old: "if end := e.promiseEnd(heir); end < until {", new: "if end := e.promiseEnd(heir); end < 0 {",
		why: "a leader acts although its heir has not promised"},
	{name: "promise from the answer", file: "internal/election/heir.go",
		old: "l.promises, l.promised = true, sent", new: "l.promises, l.promised = true, now",
		why: "a leader counts a promise from its arrival"},
	{name: "only the new heir", file: "internal/election/heir.go",
		old: "heirs := [2]Peer{e.heir}",
		new: "heirs := [2]Peer{}\n\tif e.write.sends == 0 {\n\t\theirs[0] = e.heir\n\t}",
		why: "while another heir is being written down the one before is not asked any more"},
	{name: "promises and takes over", file: "internal/election/promise.go",
		old: "case e.pending == write || e.write.sends > 0:",
		new: "case e.pending != write && e.write.sends > 0 && e.write.again:",
		why: "who has sent a take-over promises on"},
	{name: "claim inherited", file: "internal/election/promise.go",
		old: "return lock.Heir == e.self.Peer() && e.promise.to.Incarnation == lock.Incarnation && e.promise.term " +
			"== lock.Term", new: "return lock.Heir.ID == e.self.ID",
		why: "a restarted heir takes over as if it knew what it had promised"},
	{name: "promise broken", file: "internal/election/watch.go", quick: true,
		old: "return e.promise.until\n\t\t}", new: "return e.seen.since\n\t\t}",
		why: "an heir takes over whatever it has promised"},
	{name: "others wait as before", file: "internal/election/watch.go",
		old: "return max(e.seen.since.Add(patience(lock.Lease())), e.promise.until)",
		new: "return max(e.seen.since.Add(patience(e.opt.Lease)), e.promise.until)",
		why: "who is not the heir does not wait for the long lease"},
	{name: "no farewell", file: "internal/election/elector.go",
		old: "if led {\n\t\te.sayFarewell(now, d)\n\t}", new: "",
		why: "a leader that stops keeps its heir to its promise"},
}

// TestHunt plays worlds from seed SIM_FIRST on for at most SIM_HUNT of real time, and says what broke first: see
// mutants_test.go.
func TestHunt(t *testing.T) {
	limit, err := time.ParseDuration(os.Getenv("SIM_HUNT"))
	if err != nil {
		limit = time.Second
	}
	first, ok := number(t, "SIM_FIRST")
	if !ok {
		first = 1
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	began := time.Now()
	var mu sync.Mutex
	var found *Broken
	next, played := first, 0
	var wg sync.WaitGroup
	for range workers() {
		wg.Go(func() {
			for {
				mu.Lock()
				seed := next
				over := found != nil || time.Since(began) > limit
				next++
				mu.Unlock()
				if over {
					return
				}
				_, err := newWorld(seed).Run()
				mu.Lock()
				var broken *Broken
				if played++; errors.As(err, &broken) && (found == nil || broken.Seed < found.Seed) {
					found = broken
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if found != nil {
		t.Errorf("broken rule=%q seed=%d worlds=%d took=%v text=%q", found.Rule, found.Seed, played,
			time.Since(began).Round(time.Millisecond), found.Text)
	}
}

var brokenLine = regexp.MustCompile(`broken rule="([^"]*)" seed=(\d+) worlds=(\d+) took=(\S+) text="((?:[^"\\]|\\.)*)"`)

// TestMutants builds the simulator with each deliberate bug and plays worlds until it is found, at most SIM_BUDGET
// (60s) each. MUTANTS names some, comma separated, or is "quick" for the short form.
func TestMutants(t *testing.T) {
	budget := os.Getenv("SIM_BUDGET")
	if budget == "" {
		budget = "60s"
	}
	limit, err := time.ParseDuration(budget)
	if err != nil {
		t.Fatalf("SIM_BUDGET: %v", err)
	}
	services, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	which := os.Getenv("MUTANTS")
	for _, m := range mutants {
		if which == "quick" && !m.quick || which != "" && which != "quick" &&
			!slices.Contains(strings.Split(which, ","), m.name) {
			continue
		}
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) { m.hunt(t, services, limit) })
	}
}

func (m *mutant) hunt(t *testing.T, services string, limit time.Duration) {
	path := filepath.Join(services, filepath.FromSlash(m.file))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		t.Fatalf("%s has the text to change %d times, want once:\n%s", m.file, n, m.old)
	}
	dir := t.TempDir()
	changed, overlay, binary := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json"),
		filepath.Join(dir, "sim.test")
	listing, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{changed: strings.Replace(string(text), m.old, m.new, 1),
		overlay: string(listing)} {
		if err := os.WriteFile(name, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "mutation", "-overlay", overlay, "-o",
		binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit+time.Minute)
	defer cancel()
	hunt := exec.CommandContext(ctx, binary, "-test.run", "^TestHunt$", "-test.timeout", "0")
	hunt.Env = append(os.Environ(), "SIM_HUNT="+limit.String(), "SIM_FIRST=1")
	out, err := hunt.CombinedOutput()
	found := brokenLine.FindSubmatch(out)
	switch {
	case found != nil:
		t.Logf("%s: caught by rule %q at seed %s, after %s worlds and %s: %s", m.why, found[1], found[2], found[3],
			found[4], found[5])
	case err != nil:
		t.Fatalf("hunt: %v\n%s", err, out)
	default:
		t.Errorf("%s: not caught in %v", m.why, limit)
	}
}
