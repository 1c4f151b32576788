package k8s

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settleTime is how long a file must stay unchanged before it is read. A program may write a file in several parts.
	settleTime = 50 * time.Millisecond
	// absenceTime is the time for which a file must be missing before its object is deleted. Editors and `git checkout`
	// replace files in two steps.
	absenceTime = 250 * time.Millisecond
)

// follower passes users' changes of files on to the store. An event of the watcher only says which file to read. If
// events were lost, the follower reads all files.
type follower struct {
	store   *store
	dir     string
	watcher *fsnotify.Watcher
	due     map[string]deadline // by path relative to dir
}

// deadline is the time at which a file is to be read.
type deadline struct {
	at      time.Time
	missing bool // the file was missing at the last check
}

// newFollower starts to watch the directory. It must be called before the first read of the directory. Otherwise
// changes between that read and the call of follower.run would be lost.
func newFollower(s *store, dir string) (*follower, error) {
	w, err := fsnotify.NewBufferedWatcher(1000)
	if err != nil {
		return nil, fmt.Errorf("watch directory of objects: %w", err)
	}
	f := &follower{store: s, dir: dir, watcher: w, due: map[string]deadline{}}
	if err := w.Add(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("watch directory of objects: %w", err), w.Close())
	}
	f.enter(".")
	return f, nil
}

func (f *follower) close() error { return f.watcher.Close() }

// run tells the store about users' changes of files, until ctx ends.
func (f *follower) run(ctx context.Context) error {
	timer := time.NewTimer(settleTime)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-f.watcher.Events:
			if !ok {
				return errors.New("watch directory of objects: it has ended")
			}
			if !e.Has(fsnotify.Chmod) || e.Op != fsnotify.Chmod {
				f.note(e)
			}
		case err, ok := <-f.watcher.Errors:
			if !ok {
				return errors.New("watch directory of objects: it has ended")
			}
			f.store.log.Warn("watch directory of objects: everything is read again", "error", err)
			f.enter(".")
		case <-timer.C:
			f.checkDueFiles(time.Now())
		}
		timer.Reset(f.wait(time.Now()))
	}
}

// note schedules a check of the file that an event names.
func (f *follower) note(e fsnotify.Event) {
	name, err := filepath.Rel(f.dir, e.Name)
	if err != nil {
		return
	}
	name = filepath.ToSlash(name)
	if _, _, ok := f.store.locate(name); ok {
		f.due[name] = deadline{at: time.Now().Add(settleTime)}
		return
	}
	if parts := strings.Split(name, "/"); len(parts) < 3 && !strings.HasPrefix(parts[len(parts)-1], ".") &&
		!e.Has(fsnotify.Write) {
		f.enter(name)
	}
}

// enter watches a directory and those below it, and schedules a check of all files that are or were there.
func (f *follower) enter(name string) {
	for _, dir := range f.store.directories(name) {
		if err := f.watcher.Add(filepath.Join(f.dir, filepath.FromSlash(dir))); err != nil &&
			!errors.Is(err, fsnotify.ErrClosed) {
			f.store.log.Warn("watch directory", "path", f.store.shown(dir), "error", err)
		}
	}
	at := time.Now().Add(settleTime)
	for _, file := range f.store.scan(name) {
		f.due[file] = deadline{at: at}
	}
}

// checkDueFiles checks the files that are due.
func (f *follower) checkDueFiles(now time.Time) {
	for name, d := range f.due {
		if d.at.After(now) {
			continue
		}
		delete(f.due, name)
		if f.store.readChangedFile(name, d.missing) && !d.missing {
			f.due[name] = deadline{at: now.Add(absenceTime), missing: true}
		}
	}
}

// wait returns the time until the next check.
func (f *follower) wait(now time.Time) time.Duration {
	wait := time.Hour
	for _, d := range f.due {
		wait = min(wait, d.at.Sub(now))
	}
	return max(wait, 0)
}
