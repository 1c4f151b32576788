package operator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/tests/kube"
)

// trap kills an operator during a write to the API server, or while it sends a TLS record to a shard. The field
// "arrives" decides whether that write or record still arrives.
type trap struct {
	mu      sync.Mutex
	victim  *kube.Process
	writes  int // The count of the write to kill at; 0 means never.
	records int
	arrives bool
	sprung  string // The write or record that sprang the trap.
}

// set makes the trap kill an operator at the write with the number "writes", or at the record with the number
// "records".
func (k *trap) set(victim *kube.Process, writes, records int, arrives bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.victim, k.writes, k.records, k.arrives, k.sprung = victim, writes, records, arrives, ""
}

func (k *trap) at() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sprung
}

// spring decreases the counter before the proxy forwards a write or record. At zero, the operator is killed. If the
// write or record must be lost, spring kills the operator immediately. If it must arrive, the proxy forwards it and
// then calls "done", which kills the operator. "pass" reports whether the proxy may forward it.
func (k *trap) spring(counter *int, what string) (pass bool, done func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if *counter == 0 || k.victim == nil {
		return k.sprung == "" || k.arrives, func() {}
	}
	if *counter--; *counter > 0 {
		return true, func() {}
	}
	k.sprung = what
	victim := k.victim
	if !k.arrives {
		victim.Kill()
		return false, func() {}
	}
	return true, victim.Kill
}

// kubernetes is a proxy in front of the API server. It forwards requests about leases or events without counting them,
// because the test does not check what they change.
func (k *trap) kubernetes(w http.ResponseWriter, r *http.Request, next http.Handler) {
	reads := r.Method == http.MethodGet || strings.Contains(r.URL.Path, "/events") ||
		strings.Contains(r.URL.Path, "/leases") ||
		!strings.HasPrefix(r.UserAgent(), "nstance-operator")
	if reads {
		next.ServeHTTP(w, r)
		return
	}
	pass, done := k.spring(&k.writes, r.Method+" "+r.URL.Path)
	if pass {
		next.ServeHTTP(w, r)
	}
	done()
}

// shard starts a proxy in front of a shard's address and returns the address of the proxy. The operator's connection is
// encrypted, so the proxy counts TLS application data records (RFC 8446 section 5.1) instead of calls. The operator
// sends at least one record for each call.
func (k *trap) shard(ctx context.Context, t *testing.T, addr string) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go k.relay(ctx, conn, addr)
		}
	}()
	return listener.Addr().String()
}

func (k *trap) relay(ctx context.Context, operator net.Conn, addr string) {
	defer operator.Close()
	server, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return
	}
	defer server.Close()
	go func() { _, _ = io.Copy(operator, server); _ = operator.Close() }() // The side that ends first closes both.
	const applicationData = 23
	header := make([]byte, 5)
	for {
		if _, err := io.ReadFull(operator, header); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint16(header[3:]))
		if _, err := io.ReadFull(operator, body); err != nil {
			return
		}
		pass, done := true, func() {}
		if header[0] == applicationData {
			pass, done = k.spring(&k.records, "record to "+addr)
		}
		if !pass {
			return
		}
		if _, err := server.Write(slices.Concat(header, body)); err != nil {
			return
		}
		done()
	}
}

// TestKilledOperatorsFinishTheirWork kills one operator after the other. Each is killed while it writes to Kubernetes
// or sends a record to a shard. In the end, the work must be done.
func TestKilledOperatorsFinishTheirWork(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole Kubernetes and two shards")
	}
	t.Parallel()
	l := newLab(t)
	l.settleServers(t)
	k := &trap{}
	url, err := l.Front(t.Context(), k.kubernetes)
	if err != nil {
		t.Fatal(err)
	}
	l.configure(t.Context(), t, url, func(_ *shard, addr string) string { return k.shard(t.Context(), t, addr) })

	before := l.ids(t, "", l.shards()...)
	l.killed(t, k, "bootstrap and import", func(ctx context.Context) error {
		return errors.Join(l.taken(ctx, workers, l.both(2, 2)), l.taken(ctx, machines, l.both(0, 0)),
			l.taken(ctx, guarded, map[*shard]int{l.east: 1}))
	})
	l.controlPlane(t)
	if after := l.ids(t, "", l.shards()...); !slices.Equal(before, after) {
		t.Errorf("the import changed the instances from %v to %v", before, after)
	}
	l.registrations(t)

	made := l.made(workers)
	if err := l.scale(t.Context(), workers, 5); err != nil {
		t.Fatal(err)
	}
	l.killed(t, k, "scale up", func(ctx context.Context) error { return l.taken(ctx, workers, l.both(3, 2)) })
	if made = l.made(workers) - made; made != 1 {
		t.Errorf("%d instances were made for one more", made)
	}

	l.machine(t, "single", "west")
	l.killed(t, k, "make a machine", func(ctx context.Context) error {
		return l.machineRuns(ctx, "single", l.single(t))
	})
	if made := l.made(machines); made != 1 {
		t.Errorf("%d instances were made for one machine", made)
	}
	id := l.single(t)
	l.kubectl(t, "-n", namespace, "delete", "machine.cluster.x-k8s.io", "single", "--wait=false")
	l.killed(t, k, "delete a machine", func(ctx context.Context) error {
		return errors.Join(l.left(ctx, l.west, id), l.absent(ctx, &v1beta1.NstanceMachine{}, in("single")),
			l.absent(ctx, &clusterv1.Machine{}, in("single")))
	})

	if err := l.scale(t.Context(), workers, 4); err != nil {
		t.Fatal(err)
	}
	l.killed(t, k, "scale down", func(ctx context.Context) error { return l.taken(ctx, workers, l.both(2, 2)) })
	l.operator(t)
	l.restored(t, workers, l.both(2, 2))
}

// made returns the number of create calls for a group, of both shards together.
func (l *lab) made(group string) int {
	return len(l.east.creations(group)) + len(l.west.creations(group))
}

// taken returns an error unless the group has the given sizes on the shards, and the MachinePool's replicas are the sum
// of these sizes.
func (l *lab) taken(ctx context.Context, group string, sizes map[*shard]int) error {
	total := 0
	for s, size := range sizes {
		total += size
		if err := s.settled(ctx, group, size); err != nil {
			return err
		}
	}
	return has(ctx, l, &clusterv1.MachinePool{}, group, func(p *clusterv1.MachinePool) error {
		if p.Spec.Replicas == nil || value(p.Spec.Replicas) != total || value(p.Status.Replicas) != total {
			return fmt.Errorf("MachinePool %s has %d of %d replicas, want %d", group, value(p.Status.Replicas),
				value(p.Spec.Replicas), total)
		}
		return nil
	})
}

// killed starts at most 400 operators, one after the other, until the work is done. Of every four operators, three are
// killed during a write to Kubernetes, and one of these three writes is lost. The fourth is killed while it sends a
// record to a shard.
func (l *lab) killed(t *testing.T, k *trap, what string, done func(context.Context) error) {
	t.Helper()
	began := time.Now()
	var atWrites, atRecords []string
	for n := 1; n <= 400; n++ {
		// The later the round n, the more writes or records an operator may make before it is killed. If the numbers
		// stayed small, every operator could be killed during its first writes, and the work would never end.
		writes, records, arrives := 1+n/8, 0, n%4 > 1
		if n%4 == 0 {
			writes, records, arrives = 0, 1+n/4, n%8 == 0
		}
		process := l.operator(t)
		k.set(process, writes, records, arrives)
		if l.outcome(t, process, done) {
			process.Kill()
			k.set(nil, 0, 0, true)
			t.Logf("%s: %.1f s, killed at %d writes (%d kinds) and %d records", what, time.Since(began).Seconds(),
				len(atWrites), kinds(atWrites), len(atRecords))
			if len(atWrites) == 0 && len(atRecords) == 0 {
				t.Errorf("%s: no process was killed", what)
			}
			return
		}
		at := k.at()
		switch {
		case at == "":
			t.Fatalf("%s: the operator ended unexpectedly with exit code %d:\n%s", what, process.ExitCode(),
				kube.Tail(process.Log, 20))
		case strings.HasPrefix(at, "record"):
			atRecords = append(atRecords, at)
		default:
			atWrites = append(atWrites, at)
		}
		l.operators = slices.DeleteFunc(l.operators, func(p *kube.Process) bool { return p == process })
	}
	t.Fatalf("%s: not done with 400 operators", what)
}

func kinds(at []string) int {
	slices.Sort(at)
	return len(slices.Compact(slices.Clone(at)))
}

// outcome waits until the work is done (true) or the operator has ended (false).
func (l *lab) outcome(t *testing.T, process *kube.Process, done func(context.Context) error) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := done(ctx)
		if err == nil {
			return true
		}
		select {
		case <-process.Ended():
			return false
		case <-ctx.Done():
			t.Fatalf("neither done nor killed: %v", err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// registrations checks that exactly one operator is registered, no matter how often it was killed. The test's own
// connections to the shards are registered too, and do not count.
func (l *lab) registrations(t *testing.T) {
	t.Helper()
	state, err := l.east.bucket.state("east")
	if err != nil {
		t.Fatal(err)
	}
	operators, err := state.ListOperators(t.Context(), tenant)
	if err != nil {
		t.Fatal(err)
	}
	if len(operators) != 1+len(l.shards()) {
		t.Errorf("%d operators are registered, want one and one for each connection of the test", len(operators))
	}
}

// single returns the instance ID of the NstanceMachine named single.
func (l *lab) single(t *testing.T) string {
	t.Helper()
	infra := &v1beta1.NstanceMachine{}
	if err := l.Client.Get(t.Context(), in("single"), infra); err != nil {
		t.Fatal(err)
	}
	return infra.Spec.InstanceID
}
