package agent_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

const (
	spare  = nstancev1.InstanceRole_INSTANCE_ROLE_SPARE
	member = nstancev1.InstanceRole_INSTANCE_ROLE_MEMBER
)

func roleEvent(role nstancev1.InstanceRole) *nstancev1.ReceiveFilesResponse {
	return &nstancev1.ReceiveFilesResponse{Event: &nstancev1.ReceiveFilesResponse_Role{
		Role: &nstancev1.Role{Role: role}}}
}

func hasRole(role nstancev1.InstanceRole) func(*nstancev1.ReportHealthRequest) bool {
	return func(r *nstancev1.ReportHealthRequest) bool { return r.GetRole() == role }
}

// TestRole checks what an agent does when its instance is a spare, becomes a member, and restarts.
func TestRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := newFakeServer(t, newID(t)), &network{}
		s.interval = "1h"
		s.firstFiles = []*nstancev1.ReceiveFilesResponse{roleEvent(spare), healthChecks("v1", "web")}
		stopServer := s.start(t, n.listen(address))
		defer func() { stopServer() }()
		m := newMemories(t, s)
		o, units, hooks := m.options(s, n), []bool{}, [][]string{}
		var probes atomic.Int32
		o.Member = func(_ context.Context, member bool) error {
			units = append(units, member)
			return errors.New("no systemd")
		}
		o.Hook = func(_ context.Context, changed []string) error {
			hooks = append(hooks, changed)
			return nil
		}
		o.Probe = func(context.Context, *nstancev1.HealthCheck) string {
			probes.Add(1)
			return ""
		}
		role := func() string {
			text, _ := m.files.Read("role")
			return string(text)
		}
		_, stop := run(t, o)
		s.next(t, "a spare", hasRole(spare))
		synctest.Wait()
		if !get(s, func() bool { return s.asked.GetWithRole() }) || role() != "spare\n" || !slices.Equal(units,
			[]bool{false}) || len(hooks) != 1 || !slices.Equal(hooks[0], []string{"role"}) {
			t.Errorf("role %q, units %v, hooks %q", role(), units, hooks)
		}

		before := probes.Load()
		s.fileSends <- roleEvent(member)
		s.next(t, "a member", hasRole(member))
		synctest.Wait()
		if probes.Load() == before {
			t.Error("the health checks have not begun again")
		}
		if role() != "member\n" || !slices.Equal(units, []bool{false, true}) || len(hooks) != 2 {
			t.Errorf("role %q, units %v, hooks %q", role(), units, hooks)
		}
		s.fileSends <- roleEvent(spare) // from a server with an outdated record
		s.fileSends <- roleEvent(nstancev1.InstanceRole(9))
		s.fileSends <- roleEvent(member)
		time.Sleep(time.Minute)
		synctest.Wait()
		if role() != "member\n" || len(units) != 2 || len(hooks) != 2 {
			t.Errorf("a member became a spare: role %q, units %v, hooks %q", role(), units, hooks)
		}
		_ = stop()

		s.firstFiles = nil
		_, stop = run(t, o)
		s.next(t, "the role of the former process", hasRole(member))
		synctest.Wait()
		if !slices.Equal(units, []bool{false, true, true}) || len(hooks) != 2 {
			t.Errorf("units %v, hooks %q", units, hooks)
		}
		_ = stop()
	})
}

// TestRoleIsTakenAgain checks that an agent that ended while its hook ran takes the role again, and that the role in a
// copy of another VM's disk does not count.
func TestRoleIsTakenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := newFakeServer(t, newID(t)), &network{}
		s.interval = "1h"
		s.firstFiles = []*nstancev1.ReceiveFilesResponse{roleEvent(member)}
		stopServer := s.start(t, n.listen(address))
		defer func() { stopServer() }()
		m := newMemories(t, s)
		o, hooks := m.options(s, n), 0
		o.Hook = func(ctx context.Context, _ []string) error {
			hooks++
			<-ctx.Done()
			return ctx.Err()
		}
		_, stop := run(t, o)
		s.next(t, "a first report", first)
		synctest.Wait()
		_ = stop()
		if hooks != 1 {
			t.Fatalf("the hook ran %d times", hooks)
		}
		s.firstFiles = nil
		o.Hook = func(context.Context, []string) error { hooks++; return errors.New("exit status 1") }
		_, stop = run(t, o)
		report := s.next(t, "the role", hasRole(member))
		if hooks != 2 || report.GetMessage() != "hook for the role member: exit status 1" || !report.GetHealthy() {
			t.Errorf("%d hooks, %v", hooks, report)
		}
		_ = stop()

		if err := m.identity.Write("role.json", []byte(`{"instance":"another","role":"member","taken":true}`),
			0o600); err != nil {
			t.Fatal(err)
		}
		_, stop = run(t, o)
		if report := s.next(t, "a first report", first); report.GetRole() != 0 {
			t.Errorf("the role of another VM: %v", report)
		}
		_ = stop()
	})
}

// TestWoken lets the machine of a spare sleep. When it wakes, the agent connects again without a pause, also if the
// instance has become a member meanwhile.
func TestWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := newFakeServer(t, newID(t)), &network{}
		s.interval = "1h"
		s.firstFiles = []*nstancev1.ReceiveFilesResponse{roleEvent(spare)}
		stopServer := s.start(t, n.listen(address))
		defer func() { stopServer() }()
		m := newMemories(t, s)
		o := m.options(s, n)
		woken := make(chan struct{})
		watches := 0
		o.Wakes = func(context.Context) <-chan struct{} {
			watches++
			return woken
		}
		_, stop := run(t, o)
		s.next(t, "a spare", hasRole(spare))
		wake := func(role nstancev1.InstanceRole) {
			t.Helper()
			time.Sleep(time.Minute)
			woke := time.Now()
			woken <- struct{}{}
			s.next(t, "a report on a new stream", hasRole(role))
			if took := time.Since(woke); took > 100*time.Millisecond {
				t.Errorf("connected again after %s", took)
			}
			synctest.Wait()
		}
		wake(spare)
		wake(spare)
		s.fileSends <- roleEvent(member)
		s.next(t, "a member", hasRole(member))
		wake(member)
		if watches != 1 {
			t.Errorf("watched %d times", watches)
		}
		_ = stop()
	})
}
