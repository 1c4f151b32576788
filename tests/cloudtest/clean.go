package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloudtest/account"
)

// clean deletes everything that a run may have created, and checks that nothing is left. Only a second interrupt ends
// it.
func (p *program) clean(r *record, to *target) error {
	p.setRunning(r)
	if err := p.endProcesses(r); err != nil {
		return err
	}
	began := time.Now()
	p.say("clean-up of %s: looking for %d kinds of resources in the account %s, region %s", r.Name, len(to.Kinds()),
		r.Account, r.Region)
	err := account.Sweep(context.Background(), to, r.Name, func(left []account.Resource) {
		p.say("      %d left: %s", len(left), summary(left))
	})
	if err != nil {
		return fmt.Errorf("clean-up of %s: %w\nTo try again: %s", r.Name, err, r.cleanCommand())
	}
	p.say("inventory: nothing is left of %s, after %s (looked for: %s)", r.Name, rounded(time.Since(began)),
		strings.Join(to.Kinds(), ", "))
	p.setRunning(nil)
	r.Clean = time.Now().UTC()
	return r.write()
}

// summary counts resources by kind.
func summary(left []account.Resource) string {
	var kinds []string
	count := map[string]int{}
	for _, r := range left {
		if count[r.Kind]++; !slices.Contains(kinds, r.Kind) {
			kinds = append(kinds, r.Kind)
		}
	}
	for i, kind := range kinds {
		if n := count[kind]; n > 1 {
			kinds[i] = fmt.Sprintf("%d × %s", n, kind)
		}
	}
	return strings.Join(kinds, ", ")
}

// cleanAll cleans up the run that NAME names, or all runs whose records say that they may have left something.
func (p *program) cleanAll(ctx context.Context) error {
	runs, err := unclean(p.dir)
	if err != nil {
		return err
	}
	if p.name != "" {
		runs = slices.DeleteFunc(runs, func(r *record) bool { return r.Name != p.name })
		if len(runs) == 0 { // its record is on another machine, or says that it is clean
			if targets[p.cloud] == nil {
				return fmt.Errorf("there is no record of %s in %s: set CLOUD and REGION as well", p.name, p.dir)
			}
			dir, err := filepath.Abs(filepath.Join(p.dir, p.name))
			if err != nil {
				return err
			}
			runs = []*record{{Name: p.name, Cloud: p.cloud, Region: p.region, Began: time.Now().UTC(), dir: dir}}
		}
	}
	if len(runs) == 0 {
		p.say("No run has left anything, by the records in %s.", p.dir)
		return nil
	}
	var failed []error
	for _, r := range runs {
		failed = append(failed, p.cleanOne(ctx, r))
	}
	return errors.Join(failed...)
}

func (p *program) cleanOne(ctx context.Context, r *record) error {
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	o := p.options
	o.region, o.account = r.Region, r.Account
	if p.account != "" {
		o.account = p.account
	}
	to, err := targets[r.Cloud](ctx, o)
	if err != nil {
		return err
	}
	who, err := to.Identify(ctx)
	if err != nil {
		return fmt.Errorf("find out which account the credentials belong to (to log in, %s): %w", to.login, err)
	}
	if r.Account != "" && r.Account != who.Account {
		return fmt.Errorf("the run %s was in the account %s, and the credentials belong to %s (%s): nothing was "+
			"deleted", r.Name, r.Account, who.Account, who.Caller)
	}
	r.Account = who.Account
	found, err := to.Inventory(ctx, r.Name)
	if err != nil {
		return err
	}
	p.say("run %s, begun at %s, in the account %s (%s), region %s: %d resources", r.Name,
		r.Began.Format(time.RFC3339), who.Account, who.Caller, r.Region, len(found))
	if err := p.confirmed(ctx, "Delete everything of "+r.Name+"?"); err != nil {
		return err
	}
	return p.clean(r, to)
}
