package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloudtest/account"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
	"github.com/nstance-kit/nstance/tests/stacks/scenario"
)

// limit is how long a shard in a real cloud may take for one change. The leader reads its configuration every three
// minutes, and VMs take a minute or two to boot.
const limit = 12 * time.Minute

// measure is one row of the result page.
type measure struct {
	what, goal string
	took       time.Duration
}

// run is a run of the scenario.
type run struct {
	*program
	*record

	to       *target
	cli      string
	log      *os.File
	task     *task // of the present step
	measures []measure
}

// test runs the scenario, cleans up, and writes the result page.
func (p *program) test(ctx context.Context) error {
	to, err := targets[p.cloud](ctx, p.options)
	if err != nil {
		return err
	}
	r, err := p.prepare(ctx, to)
	if err != nil {
		return err
	}
	if err := p.confirmed(ctx, "Continue in the account "+r.Account+"?"); err != nil {
		return err
	}
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if r.log, err = r.openLog(); err != nil {
		return err
	}
	defer func() { _ = r.log.Close() }()
	if err := r.write(); err != nil {
		return fmt.Errorf("write the record of the run, before anything is created: %w", err)
	}
	p.setRunning(r.record)
	failed := r.scenario(ctx)
	if failed != nil {
		p.say("\n%v\n\nThe log is %s. Cleaning up.", failed, r.logFile())
	}
	cleaned := p.clean(r.record, to)
	page, err := r.page(ctx, failed, cleaned)
	if err == nil {
		p.say("\nThe result page is %s", page)
	}
	return errors.Join(failed, cleaned, err)
}

func (r *record) logFile() string { return filepath.Join(r.dir, "log") }

func (r *record) openLog() (*os.File, error) {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(r.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// prepare checks everything that can be checked without creating anything, and says what will happen.
func (p *program) prepare(ctx context.Context, to *target) (*run, error) {
	arch := p.arch
	if arch == "" {
		arch = to.arches[0]
	}
	if !slices.Contains(to.arches, arch) {
		return nil, fmt.Errorf("ARCH=%s: the images for %s are built for %s", arch, p.cloud,
			strings.Join(to.arches, " and "))
	}
	if (p.serverImage == "") != (p.agentImage == "") {
		return nil, errors.New("give both -server-image and -agent-image, or neither, to build both")
	}
	who, err := p.identify(ctx, to)
	if err != nil {
		return nil, err
	}
	zone, err := to.Zone(ctx, to.region, p.zone, to.machines(arch))
	if err != nil {
		return nil, err
	}
	cli, err := p.findCLI(ctx)
	if err != nil {
		return nil, err
	}
	name := p.name
	if name == "" {
		name = newName()
	}
	found, err := to.Inventory(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("look at what the account has: %w", err)
	}
	if len(found) > 0 {
		return nil, fmt.Errorf("the account already has resources of a cluster %s, such as %s: nothing was created or "+
			"deleted. Leave out NAME for a new name, or delete them with CLEAN=1 NAME=%s", name, found[0], name)
	}
	dir, err := filepath.Abs(filepath.Join(p.dir, name))
	if err != nil {
		return nil, err
	}
	r := &run{program: p, to: to, cli: cli, record: &record{Name: name, Cloud: p.cloud, Account: who.Account,
		Region: to.region, Zone: zone, Arch: arch, Version: version(ctx), Began: time.Now().UTC(), dir: dir,
		Images: map[string]string{}}}
	images := "built from this checkout on two small machines"
	if p.serverImage != "" {
		r.Images["server"], r.Images["agent"] = p.serverImage, p.agentImage
		images = p.serverImage + ", " + p.agentImage
	}
	takes, cost := r.expect()
	p.say("cloud-test of nstance %s, run %s", r.Version, name)
	p.say("  account  %s (%s)", who.Account, who.Caller)
	p.say("  region   %s, zone %s, %s", r.Region, zone, arch)
	p.say("  images   %s", images)
	p.say("  creates  %s", to.makes)
	p.say("  takes    about %s", takes)
	p.say("  costs    about $%.2f: %s", cost, to.costs())
	p.say("  tag      %s=%s; everything is deleted at the end", account.Tag, name)
	p.say("  record   %s", dir)
	return r, nil
}

// identify returns the account, and refuses another one than -account names.
func (p *program) identify(ctx context.Context, to *target) (account.Identity, error) {
	who, err := to.Identify(ctx)
	if err != nil {
		return who, fmt.Errorf("find out which account the credentials belong to (to log in, %s): %w", to.login, err)
	}
	if p.account != "" && p.account != who.Account {
		return who, fmt.Errorf("the credentials belong to the account %s (%s), and ACCOUNT is %s: nothing was created",
			who.Account, who.Caller, p.account)
	}
	return who, nil
}

// findCLI returns the path of tofu or terraform.
func (p *program) findCLI(ctx context.Context) (string, error) {
	if p.cli != "" {
		path, err := exec.LookPath(p.cli)
		if err != nil {
			return "", fmt.Errorf("-terraform %s: %w", p.cli, err)
		}
		return filepath.Abs(path)
	}
	for _, name := range []string{"tofu", "terraform"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	p.say("Neither tofu nor terraform is on PATH: building OpenTofu, which takes some minutes …")
	path, err := lab.Tofu(ctx)
	if err != nil {
		return "", fmt.Errorf("there is no tofu and no terraform on PATH (https://opentofu.org/docs/intro/install), "+
			"and OpenTofu cannot be built: %w", err)
	}
	return path, nil
}

// expect returns the expected time and cost of a run.
func (r *run) expect() (takes time.Duration, cost float64) {
	for _, step := range r.chosen(&scenario.Life{}) {
		takes += step.Takes
	}
	if len(r.Images) == 0 {
		takes += imagesTake
	}
	for _, price := range r.to.prices {
		cost += price.once + price.hour*takes.Hours()
	}
	return takes, cost
}

// costs explains the cost of an hour.
func (t *target) costs() string {
	var parts []string
	for _, price := range t.prices {
		if price.hour > 0 {
			parts = append(parts, fmt.Sprintf("%s $%.3f an hour", price.part, price.hour))
		} else {
			parts = append(parts, fmt.Sprintf("%s $%.2f", price.part, price.once))
		}
	}
	return strings.Join(parts, ", ") + " (list prices of an inexpensive region)"
}

// scenario runs all steps, until one fails.
func (r *run) scenario(ctx context.Context) error {
	life := &scenario.Life{Vars: r.vars(r.to), Args: r.to.args}
	life.Shard = &scenario.Shard{Cloud: &seen{Account: r.to.Account, run: r, ctx: ctx}, Within: limit, Name: r.Zone,
		Measured: func(what, goal string, took time.Duration) {
			r.measures = append(r.measures, measure{what, goal, took})
			r.say("      %s: %s", what, rounded(took))
		}}
	life.Open = func(t lab.T) { life.State = r.state(t, r.to, life.Stack) }
	steps := []scenario.Step{{Name: "programs", Does: "build the provider, and initialize the example",
		Takes: time.Minute, Run: func(t lab.T) { life.Stack = r.stack(t, life.Vars) }}}
	if r.Images["server"] == "" {
		steps = append([]scenario.Step{{Name: "images", Does: "build the machine images of servers and VMs",
			Takes: imagesTake, Run: func(t lab.T) { r.buildImages(t); life.Vars = r.vars(r.to) }}}, steps...)
	}
	steps = append(steps, r.chosen(life)...)
	for i, step := range steps {
		if err := r.step(ctx, step, i+1, len(steps)); err != nil {
			return err
		}
	}
	return nil
}

// chosen returns the steps of the flag -steps.
func (p *program) chosen(life *scenario.Life) []scenario.Step {
	steps := life.Steps()
	if p.steps == "" {
		return steps
	}
	names := strings.Split(p.steps, ",")
	return slices.DeleteFunc(steps, func(step scenario.Step) bool { return !slices.Contains(names, step.Name) })
}

// checkSteps checks the flag -steps.
func checkSteps(list string) error {
	if list == "" {
		return nil
	}
	var all []string
	for _, step := range (&scenario.Life{}).Steps() {
		all = append(all, step.Name)
	}
	names := strings.Split(list, ",")
	for _, name := range names {
		if !slices.Contains(all, name) {
			return fmt.Errorf("STEPS: there is no step %q: there are %s", name, strings.Join(all, ", "))
		}
	}
	if !slices.Contains(names, all[0]) {
		return fmt.Errorf("STEPS: %s must be among the steps: the others need a cluster", all[0])
	}
	return nil
}

// step runs one step and records it.
func (r *run) step(ctx context.Context, step scenario.Step, number, of int) error {
	r.say("[%d/%d] %s: %s (about %s)", number, of, step.Name, step.Does, step.Takes)
	r.Steps = append(r.Steps, done{Step: step.Name, Began: time.Now().UTC()})
	if err := r.write(); err != nil {
		return err
	}
	t := &task{ctx: ctx, name: step.Name, log: r.log, say: r.say, dir: dirs(filepath.Join(r.dir, step.Name))}
	r.task = t
	err := t.do(step.Run)
	last := &r.Steps[len(r.Steps)-1]
	last.Ended = time.Now().UTC()
	took := rounded(last.Ended.Sub(last.Began))
	if err != nil {
		last.Error = err.Error()
		err = fmt.Errorf("step %s (%s) failed after %s: %w", step.Name, step.Does, took, err)
	} else {
		r.say("[%d/%d] %s ok, %s", number, of, step.Name, took)
	}
	return errors.Join(err, r.write())
}

// stack copies and initializes the example.
func (r *run) stack(t lab.T, vars map[string]any) *lab.Stack {
	config, err := r.cliConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var override []byte
	if r.override != "" {
		if override, err = os.ReadFile(r.override); err != nil {
			t.Fatal(err)
		}
	}
	return lab.NewStack(t, r.cli, r.to.example, vars, string(override), map[string]string{"TF_CLI_CONFIG_FILE": config,
		"CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"})
}

// cliConfig makes a CLI configuration with the provider of this checkout, unless the environment names a configuration.
func (r *run) cliConfig(ctx context.Context) (string, error) {
	if config := os.Getenv("TF_CLI_CONFIG_FILE"); config != "" {
		return config, nil
	}
	binary := filepath.Join(r.dir, "provider", "terraform-provider-nstance")
	if _, err := lab.Run(ctx, "go", "build", "-tags", "grpcnotrace", "-o", binary,
		"./terraform-provider-nstance"); err != nil {
		return "", err
	}
	return lab.Run(ctx, "scripts/tf-env.sh", "--mirror", binary, filepath.Join(r.dir, "provider", "terraform.rc"))
}

// version returns the version of the checkout.
func version(ctx context.Context) string {
	out, err := lab.Run(ctx, "git", "describe", "--tags", "--always", "--dirty")
	if err != nil {
		return "unknown"
	}
	return out
}

// seen is the cloud as the scenario sees it.
type seen struct {
	account.Account

	run *run
	ctx context.Context
}

// Workers implements [scenario.Cloud]. If the cloud does not answer, there seem to be none, and the step waits.
func (s *seen) Workers() []string { return s.list(s.Account.Workers) }

// Servers implements [scenario.Cloud].
func (s *seen) Servers() []string { return s.list(s.Account.Servers) }

func (s *seen) list(list func(context.Context, string) ([]string, error)) []string {
	ids, err := list(s.ctx, s.run.Name)
	if _, refused := errors.AsType[*account.RefusedError](err); refused {
		s.run.task.Fatal(err)
	}
	if err != nil {
		s.run.task.Logf("%v", err)
	}
	return ids
}

// Kill implements [scenario.Cloud].
func (s *seen) Kill(id string) {
	if err := s.Account.Kill(s.ctx, id); err != nil {
		s.run.task.Fatalf("end the machine %s: %v", id, err)
	}
}
