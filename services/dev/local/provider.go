package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// VM is the document (vm.json) that the tmux provider keeps for a VM.
type VM struct {
	Instance   ident.ID  `json:"instance"`
	Group      string    `json:"group"`
	PID        int       `json:"pid"`
	LaunchedAt time.Time `json:"launched_at"`
	StartedAt  time.Time `json:"started_at"`
	DeletedAt  time.Time `json:"deleted_at"`
}

// Disk returns the directory of a VM.
func (s *Stack) Disk(id ident.ID) string { return filepath.Join(s.AgentsDir(), id.String()) }

// VM reads the document of a VM.
func (s *Stack) VM(id ident.ID) (VM, error) {
	raw, err := os.ReadFile(filepath.Join(s.Disk(id), "vm.json"))
	if err != nil {
		return VM{}, err
	}
	var vm VM
	if err := json.Unmarshal(raw, &vm); err != nil {
		return VM{}, fmt.Errorf("vm.json of %s: %w", id, err)
	}
	return vm, nil
}

// VMs reads the documents of all VMs that are not deleted, in the order of their IDs, which is the order of creation.
func (s *Stack) VMs() ([]VM, error) {
	entries, err := os.ReadDir(s.AgentsDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var vms []VM
	for _, entry := range entries {
		id, err := ident.ParseID(entry.Name())
		if err != nil {
			continue // the journal or the lock
		}
		vm, err := s.VM(id)
		if errors.Is(err, os.ErrNotExist) {
			continue // a create call ended before it wrote the document
		}
		if err != nil {
			return nil, err
		}
		if vm.DeletedAt.IsZero() {
			vms = append(vms, vm)
		}
	}
	slices.SortFunc(vms, func(a, b VM) int { return a.Instance.Compare(b.Instance) })
	return vms, nil
}

// WipeDisks removes identities, keys and received files of all VMs, as if their disks were lost. It keeps the
// provider's documents, because a cloud still knows a VM whose disk is lost.
func (s *Stack) WipeDisks() error {
	disks, err := filepath.Glob(filepath.Join(s.AgentsDir(), "*", "*"))
	if err != nil {
		return err
	}
	for _, path := range disks {
		if filepath.Base(path) == "vm.json" {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// Call is a line of the provider's journal. It says that a create or delete call of a server began or ended.
type Call struct {
	Time     time.Time `json:"time"`
	Op       string    `json:"op"` // create_entered, create_done, create_failed, delete_entered, delete_done
	Instance ident.ID  `json:"instance"`
	PID      int       `json:"pid"`
	Error    string    `json:"error"`
}

// Calls reads the provider's journal. It skips an incomplete last line.
func (s *Stack) Calls() ([]Call, error) {
	raw, err := os.ReadFile(filepath.Join(s.AgentsDir(), "events.jsonl"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var calls []Call
	for line := range bytes.Lines(raw) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var call Call
		if err := json.Unmarshal(line, &call); err != nil {
			return nil, fmt.Errorf("provider's journal: %w", err)
		}
		calls = append(calls, call)
	}
	return calls, nil
}

// Called returns the first line of the provider's journal that has the operation op and the instance id.
func (s *Stack) Called(op string, id ident.ID) (Call, error) {
	calls, err := s.Calls()
	if err != nil {
		return Call{}, err
	}
	for _, call := range calls {
		if call.Op == op && call.Instance == id {
			return call, nil
		}
	}
	return Call{}, fmt.Errorf("the provider's journal has no %s of %s", op, id)
}

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
