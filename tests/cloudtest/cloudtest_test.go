package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// TestMain removes the programs that the labs have built.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if !testing.Short() {
		if err := lab.Discard(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// fake is a fake cloud with one account.
type fake struct {
	environment map[string]string
	flags       []string // of cloud-test
	inventory   func() []string
	// refresh lets the leader of a run read its configuration every second instead of every three minutes.
	refresh func(t *testing.T, r *record)
}

// binary builds the program.
func binary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cloud-test")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// call is a call of the program.
type call struct {
	*exec.Cmd

	out bytes.Buffer
}

// start starts the program on a fake cloud.
func (f *fake) start(t *testing.T, program, dir string, args ...string) *call {
	t.Helper()
	c := &call{Cmd: exec.CommandContext(t.Context(), program, append(append(f.flags[:len(f.flags):len(f.flags)],
		"-dir", dir), args...)...)}
	c.Dir = lab.Root()
	c.Env = os.Environ()
	for name, value := range f.environment {
		c.Env = append(c.Env, name+"="+value)
	}
	c.Stdout, c.Stderr = &c.out, &c.out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// aws returns a fake AWS with real machines.
func aws(t *testing.T) *fake {
	t.Helper()
	l := lab.New(t)
	cli, err := lab.Tofu(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &fake{environment: l.Environment(), inventory: func() []string { return l.Inventory(t) },
		flags: []string{"-cloud", "aws", "-region", l.Cloud.Region(), "-arch", "amd64", "-yes", "-terraform", cli,
			"-server-image", lab.ServerAMI, "-agent-image", lab.AgentAMI},
		refresh: func(t *testing.T, r *record) {
			t.Helper()
			var key string
			for _, name := range l.Inventory(t) {
				if id, ok := strings.CutPrefix(name, "secret nstance/"+r.Name+"/"); ok {
					key = l.Key(t, "aws-secrets-manager", "nstance/"+r.Name+"/"+id)
				}
			}
			state := l.State(t, r.Name+"-"+r.Account+"-"+r.Region, r.Name, r.Zone, key)
			vpc := l.Instances(r.Name)[0].VPC
			lab.KeepRefreshing(t, l.Operator(t, state, r.Name, vpc, "10.0.1.100"), nil)
		}}
}

// reached waits until a run has begun a step, and returns its record.
func reached(t *testing.T, dir, step string, c *call) (r *record) {
	t.Helper()
	lab.Eventually(t, 5*time.Minute, "the step "+step, func() string {
		text, err := os.ReadFile(filepath.Join(dir, recordFile))
		if err != nil {
			return err.Error()
		}
		r = &record{dir: dir}
		if err := json.Unmarshal(text, r); err != nil {
			return err.Error()
		}
		for _, one := range r.Steps {
			if one.Step == step {
				return ""
			}
			if one.Error != "" {
				t.Fatal(one.Error)
			}
		}
		return fmt.Sprint(len(r.Steps), " steps")
	})
	return r
}

// TestAWS runs cloud-test on a fake AWS.
func TestAWS(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and tools: make test-aws")
	}
	f := aws(t)
	whole(t, f)
}

// whole runs all steps. Nothing may be left.
func whole(t *testing.T, f *fake) {
	t.Helper()
	before := f.inventory()
	dir := t.TempDir()
	c := f.start(t, binary(t), dir, "-name", "ct-whole")
	f.refresh(t, reached(t, filepath.Join(dir, "ct-whole"), "plan", c))
	err := c.Wait()
	t.Logf("%s", c.out.String())
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "ct-whole", "log"))
		t.Errorf("%v\n%s", err, log[max(0, len(log)-20000):])
	}
	page, err := os.ReadFile(filepath.Join(dir, "ct-whole", "result.md"))
	const passed = "All steps passed. An inventory after the run found nothing of it."
	if err != nil || !strings.Contains(string(page), passed) {
		t.Errorf("the result page: %v\n%s", err, page)
	}
	t.Logf("%s", page)
	if diff := cmp.Diff(before, f.inventory()); diff != "" {
		t.Errorf("after the run (-before +now):\n%s", diff)
	}
}
