package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

const windowPrefix = "nstance-agent-"

// Windows lists the instances that have a tmux window, in the order of their IDs.
func (s *Stack) Windows(ctx context.Context) ([]ident.ID, error) {
	out, err := s.Tmux(ctx, "list-windows", "-a", "-F", "#{session_name} #{window_name}")
	if err != nil {
		return nil, err
	}
	var ids []ident.ID
	for line := range strings.Lines(out) {
		session, window, _ := strings.Cut(strings.TrimSpace(line), " ")
		if session != Session {
			continue
		}
		id, err := ident.ParseID(strings.TrimPrefix(window, windowPrefix))
		if err != nil {
			return nil, fmt.Errorf("tmux window %q: %w", window, err)
		}
		ids = append(ids, id)
	}
	slices.SortFunc(ids, ident.ID.Compare)
	return ids, nil
}

// Agents lists the processes of the agents.
func (s *Stack) Agents(ctx context.Context) ([]Found, error) {
	found, err := s.Processes(ctx)
	return slices.DeleteFunc(found, func(f Found) bool { return f.Program() != "nstance-agent" }), err
}

// LiveRecords reads the bucket and lists the instances with a record that is neither a reservation nor a tombstone.
func (s *Stack) LiveRecords(ctx context.Context) ([]ident.ID, error) {
	state, err := s.State(ctx)
	if err != nil {
		return nil, err
	}
	var ids []ident.ID
	err = state.LoadInstances(ctx, func(rec record.Instance, _ objstore.Token) {
		if rec.State != record.Deleted && (rec.State != record.Reserved || rec.Group != "") {
			ids = append(ids, rec.ID)
		}
	})
	slices.SortFunc(ids, ident.ID.Compare)
	return ids, err
}

// CheckConsistent compares the records, the tmux windows, the provider's documents and the agents' processes. It
// returns nil if every instance has one record, one window, one document and one process. Otherwise the error lists
// every difference.
func (s *Stack) CheckConsistent(ctx context.Context) error {
	records, err := s.LiveRecords(ctx)
	if err != nil {
		return err
	}
	windows, err := s.Windows(ctx)
	if err != nil {
		return err
	}
	vms, err := s.VMs()
	if err != nil {
		return err
	}
	agents, err := s.Agents(ctx)
	if err != nil {
		return err
	}
	var errs []error
	known := make([]ident.ID, 0, len(vms))
	processes := map[int]bool{}
	for _, vm := range vms {
		known = append(known, vm.Instance)
		processes[vm.PID] = true
	}
	if !slices.Equal(records, windows) {
		errs = append(errs, fmt.Errorf("records %v, windows %v", records, windows))
	}
	if !slices.Equal(records, known) {
		errs = append(errs, fmt.Errorf("records %v, VMs of the provider %v", records, known))
	}
	for _, agent := range agents {
		if !processes[agent.PID] {
			errs = append(errs, fmt.Errorf("agent of no known VM: %s", agent))
		}
	}
	if len(agents) != len(vms) {
		errs = append(errs, fmt.Errorf("%d agents for %d VMs", len(agents), len(vms)))
	}
	return errors.Join(errs...)
}

// CheckStartedOnce verifies in the provider's journal that the provider started at most one machine for each instance
// ID.
func (s *Stack) CheckStartedOnce() error {
	calls, err := s.Calls()
	if err != nil {
		return err
	}
	machines := map[ident.ID]int{}
	for _, call := range calls {
		if call.Op != "create_done" || call.PID == 0 {
			continue
		}
		if pid, ok := machines[call.Instance]; ok && pid != call.PID {
			return fmt.Errorf("%s was started twice, as PID %d and %d", call.Instance, pid, call.PID)
		}
		machines[call.Instance] = call.PID
	}
	return nil
}
