package system

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/dev/local"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// agentsOf lists the processes of the agents.
func agentsOf(ctx context.Context, s *local.Stack) ([]local.Found, error) {
	found, err := s.Processes(ctx)
	return slices.DeleteFunc(found, func(f local.Found) bool { return f.Program() != "nstance-agent" }), err
}

// liveRecords reads the bucket and lists the instances with a record that is neither a reservation nor a tombstone.
func liveRecords(ctx context.Context, s *local.Stack) ([]ident.ID, error) {
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

// checkConsistent compares the records, the tmux windows, the provider's documents and the agents' processes. It
// returns nil if every instance has one record, one window, one document and one process. Otherwise the error lists
// every difference.
func checkConsistent(ctx context.Context, s *local.Stack) error {
	records, err := liveRecords(ctx, s)
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
	agents, err := agentsOf(ctx, s)
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

// checkStartedOnce verifies in the provider's journal that the provider started at most one machine for each instance
// ID.
func checkStartedOnce(s *local.Stack) error {
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
