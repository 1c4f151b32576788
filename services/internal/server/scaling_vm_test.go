package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

// scaleOnce lets the leader choose the sizes of its groups once, and returns why it chose that of the group g.
func (p *run) scaleOnce() string {
	leading, passes := p.server.leading.Load(), 0
	_ = p.server.scaleGroups(p.testShard.t.Context(), leading, tasks.Env{Now: time.Now,
		Sleep: func(context.Context, time.Duration) error {
			if passes++; passes > 1 {
				return errors.New("enough")
			}
			return nil
		}})
	view, _ := leading.leader.State.GroupView(config.GroupKey{Tenant: "default", Group: "g"})
	if view.Scaled == nil {
		return ""
	}
	return view.Scaled.Why
}

// TestScaleByNumberOnVM lets a group grow by a number that a program on its VMs serves. Real agents read it, and follow
// a changed configuration without another VM.
func TestScaleByNumberOnVM(t *testing.T) {
	var load atomic.Int64
	load.Store(300)
	program := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/state" {
			fmt.Fprintf(w, `{"queue": {"waiting": %d}}`, load.Load())
			return
		}
		fmt.Fprintf(w, "# TYPE inflight gauge\ninflight{path=\"/\"} %d\n", load.Load())
	}))
	defer program.Close()
	port := program.URL[strings.LastIndex(program.URL, ":")+1:]
	r := newTestShard(t)
	f := newCheckedFleet(r)
	configure := func(metric string) {
		r.configure(func(doc map[string]any) {
			doc["server"].(map[string]any)["check_registration_address"] = false
			doc["server"].(map[string]any)["health_check_interval"] = "1s"
			doc["defaults"] = map[string]any{"userdata": map[string]any{
				"content": "{{ .Nonce }}\n{{ .Cluster.CACert }}"}}
			doc["groups"] = map[string]any{"default": map[string]any{"g": map[string]any{"template": "t", "size": 1,
				"scaling": map[string]any{"max": 2, "metrics": []any{map[string]any{"vm": jsonOf(t, metric)}}}}}}
		})
	}
	configure(`{"port": ` + port + `, "metric": "inflight", "target": 100}`)
	p := r.start(testKey)
	numbers := func() (texts []string) {
		leading := p.server.leading.Load()
		if leading == nil {
			return nil
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, id := range f.started {
			texts = append(texts, numberOf(leading, id))
		}
		return texts
	}
	p.await("the number of the VM", func() bool { return fmt.Sprint(numbers()) == "[300]" })
	p.await("a second VM", func() bool {
		return strings.Contains(p.scaleOnce(), "vm is at 300, with a target of 100, which asks for 3") &&
			r.running() == 2
	})
	p.await("the numbers of both", func() bool { return fmt.Sprint(numbers()) == "[300 300]" })

	load.Store(90)
	p.await("the changed number", func() bool { return fmt.Sprint(numbers()) == "[90 90]" })
	configure(`{"port": ` + port + `, "path": "/state", "json": "/queue/waiting", "target": 90}`)
	if _, _, err := p.server.manager.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.await("the number of the changed configuration", func() bool { return fmt.Sprint(numbers()) == "[90 90]" })
	p.await("the target", func() bool { return strings.Contains(p.scaleOnce(), "vm is at 90, with a target of 90") })

	program.Close()
	why := "the vm of 2 of 2 instances is unknown: 127.0.0.1:" + port + "/state: connection refused, so that the size"
	p.await("the reason", func() bool { return strings.Contains(p.scaleOnce(), why) })
	if got := r.running(); got != 2 {
		t.Errorf("%d VMs after two that are needed", got)
	}
}

// numberOf returns the first number of an instance, or why it is unknown.
func numberOf(l *leadership, id ident.ID) string {
	view, ok := l.leader.State.Instance(id)
	if !ok || len(view.Scaling) == 0 {
		return "none"
	}
	value, problem, _ := view.Report.Metrics.Number(&view.Scaling[0])
	if problem != "" {
		return problem
	}
	return fmt.Sprint(value)
}

func jsonOf(t *testing.T, text string) (out any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}
