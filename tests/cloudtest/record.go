package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// record is the journal of a run. It is on the disk before the run creates anything, so that the run can be cleaned up
// after kill -9 or a power failure.
type record struct {
	Name    string    `json:"name"`
	Cloud   string    `json:"cloud"`
	Account string    `json:"account"`
	Region  string    `json:"region"`
	Zone    string    `json:"zone"`
	Arch    string    `json:"arch"`
	Version string    `json:"version"`
	Began   time.Time `json:"began"`
	// Images are the machine images, by role. Those that the run builds are added when they are ready.
	Images map[string]string `json:"images,omitempty"`
	Steps  []done            `json:"steps,omitempty"`
	// Clean is when an inventory found nothing of the run any more.
	Clean time.Time `json:"clean,omitzero"`

	dir string
}

// done is a step that has begun.
type done struct {
	Step  string    `json:"step"`
	Began time.Time `json:"began"`
	Ended time.Time `json:"ended,omitzero"`
	Error string    `json:"error,omitempty"`
	// Processes are the processes that the step started and that may outlive this program.
	Processes []int `json:"processes,omitempty"`
}

const recordFile = "run.json"

// write stores the record durably.
func (r *record) write() (err error) {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	temporary := filepath.Join(r.dir, recordFile+".new")
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, filepath.Join(r.dir, recordFile)); err != nil {
		return err
	}
	dir, err := os.Open(r.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// lock makes sure that only one program works on a run. The lock ends with the process.
func (r *record) lock() (unlock func(), err error) {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(r.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("the run %s is at work in another process of cloud-test: wait for it, or interrupt it",
			r.Name)
	}
	return func() { _ = file.Close() }, nil
}

// readRecord reads the record of a run.
func readRecord(dir string) (*record, error) {
	text, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, err
	}
	r := &record{dir: dir}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, recordFile), err)
	}
	return r, nil
}

// unclean returns the runs below a directory that have not been cleaned up.
func unclean(dir string) (runs []*record, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		r, err := readRecord(filepath.Join(dir, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the run had not begun, so it has created nothing
		}
		if err != nil {
			return nil, err
		}
		if r.Clean.IsZero() {
			runs = append(runs, r)
		}
	}
	return runs, nil
}
