package tmux

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

const documentVersion = 1

// document is the content of vm.json: everything that the provider stores about a VM. It is written before any process
// starts, and remains as a tombstone.
type document struct {
	Version  int      `json:"version"`
	Instance ident.ID `json:"instance"`
	// Request is the digest of the create request. A repeated request must have the same digest.
	Request string `json:"request"`

	Cluster   string    `json:"cluster"`
	Shard     string    `json:"shard"`
	Tenant    string    `json:"tenant"`
	Term      uint64    `json:"term"`
	InfraHash string    `json:"infra_hash"`
	Group     string    `json:"group"`
	Template  string    `json:"template"`
	Kind      string    `json:"kind"`
	CreatedAt time.Time `json:"created_at"`
	OnDemand  bool      `json:"on_demand,omitempty"`
	Spot      bool      `json:"spot,omitempty"`
	Spare     bool      `json:"spare,omitempty"`

	// Sleep is CreateRequest.Sleep. AsleepAt is when the VM was put to sleep; zero: it is awake.
	Sleep    string    `json:"sleep,omitempty"`
	AsleepAt time.Time `json:"asleep_at,omitzero"`

	InstanceType string `json:"instance_type"`
	Subnet       string `json:"subnet"`
	Hostname     string `json:"hostname"`

	// LaunchedAt is the time at which the first create call started. AcceptedAt is the time at which that call got the
	// lock and first wrote this document.
	LaunchedAt time.Time `json:"launched_at"`
	AcceptedAt time.Time `json:"accepted_at"`
	// PID and Start identify the window's process, which is the machine. They are zero until the provider knows the
	// process.
	PID       int       `json:"pid,omitempty"`
	Start     string    `json:"start,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"`
	DeletedAt time.Time `json:"deleted_at,omitzero"`

	// booted reports whether the boot script had started when the document was read. It has a meaning only while PID is
	// 0.
	booted bool
}

func newDocument(req infra.CreateRequest, digest string, entered, now time.Time) document {
	t := req.Tags
	return document{
		Version: documentVersion, Instance: t.Instance, Request: digest,
		Cluster: t.Cluster, Shard: t.Shard, Tenant: t.Tenant, Term: t.Term, InfraHash: t.InfraHash,
		Group: t.Group, Template: t.Template, Kind: t.Kind, CreatedAt: t.CreatedAt, OnDemand: t.OnDemand, Spot: t.Spot,
		Spare: t.Spare, Sleep: req.Sleep,
		InstanceType: req.InstanceType, Subnet: req.Subnet, Hostname: cmp.Or(req.Hostname, req.Tags.Instance.String()),
		LaunchedAt: entered.UTC().Round(0), AcceptedAt: now.UTC().Round(0),
	}
}

func (d document) owner() infra.Owner { return infra.Owner{Cluster: d.Cluster, Shard: d.Shard} }

func (d document) tags() infra.Tags {
	return infra.Tags{Owner: d.owner(), Tenant: d.Tenant, Instance: d.Instance, Term: d.Term, InfraHash: d.InfraHash,
		Group: d.Group, Template: d.Template, Kind: d.Kind, OnDemand: d.OnDemand, CreatedAt: d.CreatedAt, Spot: d.Spot,
		Spare: d.Spare}
}

func (d document) process() process { return process{d.PID, d.Start} }

// parseDocument parses the vm.json of an instance. It refuses unknown fields and unknown versions.
func parseDocument(raw []byte, id ident.ID) (d document, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return document{}, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return document{}, errors.New("there is more after the document")
	}
	switch {
	case d.Version != documentVersion:
		return document{}, fmt.Errorf("version %d, want %d", d.Version, documentVersion)
	case d.Instance != id:
		return document{}, fmt.Errorf("it is of instance %s", d.Instance)
	case d.Request == "" || d.LaunchedAt.IsZero() || d.AcceptedAt.IsZero():
		return document{}, errors.New("request, launched_at or accepted_at is missing")
	case d.PID < 0 || (d.PID == 0) != (d.Start == ""):
		return document{}, errors.New("pid and start do not go together")
	}
	return d, nil
}

// state is the directory that the servers of a shard share. It holds a directory for each VM, a lock, and the journal.
type state struct {
	dir  string
	turn chan struct{} // serializes callers in this process, because flock is per open file
}

func newState(dir string) (*state, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("tmux provider: %w", err)
	}
	return &state{dir: dir, turn: make(chan struct{}, 1)}, nil
}

func (s *state) vmDir(id ident.ID) string { return filepath.Join(s.dir, id.String()) }

// lock waits for the exclusive right to change VMs, also across processes. The kernel releases the lock when the
// process dies.
func (s *state) lock(ctx context.Context) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	release, err := s.flock(ctx)
	if err != nil {
		<-s.turn
		return nil, err
	}
	return func() { release(); <-s.turn }, nil
}

func (s *state) flock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		}
	}
}

// read returns a VM's document. ok is false if there is none, for example because a create call died before it wrote
// the document.
func (s *state) read(id ident.ID) (d document, ok bool, err error) {
	path := filepath.Join(s.vmDir(id), "vm.json")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return document{}, false, nil
	}
	if err != nil {
		return document{}, false, err
	}
	if d, err = parseDocument(raw, id); err != nil {
		return document{}, false, fmt.Errorf("%s: %w", path, err)
	}
	if d.PID == 0 {
		_, err := os.Lstat(filepath.Join(s.vmDir(id), bootMark))
		d.booted = err == nil
	}
	return d, true, nil
}

// write replaces a VM's document atomically.
func (s *state) write(d document) error {
	raw, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(s.vmDir(d.Instance), "vm.json"), append(raw, '\n'), 0o600)
}

// all returns every document, including tombstones, ordered by ID. It fails if one document cannot be read.
func (s *state) all() ([]document, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	docs := make([]document, 0, len(entries))
	for _, e := range entries {
		id, err := ident.ParseID(e.Name())
		if err != nil {
			continue // the lock or the journal
		}
		d, ok, err := s.read(id)
		if err != nil {
			return nil, err
		}
		if ok {
			docs = append(docs, d)
		}
	}
	return docs, nil
}

// clear removes the files of a deleted VM, except its tombstone and its console log.
func (s *state) clear(id ident.ID) error {
	entries, err := os.ReadDir(s.vmDir(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if name := e.Name(); name != "vm.json" && name != consoleLog {
			errs = append(errs, os.RemoveAll(filepath.Join(s.vmDir(id), name)))
		}
	}
	return errors.Join(errs...)
}

// Event is one line of events.jsonl in the state directory. It records one request to the provider and its time, for
// people and for the demo.
type Event struct {
	Time     time.Time `json:"time"`
	Op       string    `json:"op"` // {create,delete,sleep,wake}_{entered,done}, create_failed
	Instance ident.ID  `json:"instance"`
	Shard    string    `json:"shard,omitempty"`
	Tenant   string    `json:"tenant,omitempty"`
	Group    string    `json:"group,omitempty"`
	PID      int       `json:"pid,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// note appends an event to the journal in one write, so that the lines of several processes do not get mixed.
func (s *state) note(e Event) error {
	raw, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(s.dir, "events.jsonl"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(raw, '\n'))
	return errors.Join(err, f.Close())
}
