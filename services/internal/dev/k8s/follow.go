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
	// settleTime is how long a file is left alone after a change, so that what writes it in pieces can end.
	settleTime = 50 * time.Millisecond
	// absenceTime is how long a file must be missing before its object is deleted: editors and `git checkout` replace
	// files in two steps.
	absenceTime = 250 * time.Millisecond
)

// follower tells the store of what people do to the files. Events only say where to look, and everything is looked at
// when some were lost.
type follower struct {
	store   *store
	dir     string
	watcher *fsnotify.Watcher
	due     map[string]deadline // by path relative to dir
}

// deadline is when a file is to be looked at.
type deadline struct {
	at      time.Time
	missing bool // it was missing at the last look
}

// newFollower begins to watch, so that nothing is lost between reading the directory and run.
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

// run follows until ctx ends.
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
			f.tend(time.Now())
		}
		timer.Reset(f.wait(time.Now()))
	}
}

// note plans to look at what an event is about.
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

// enter watches a directory of the tree and those below it, and plans to look at all files that are or were there.
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

// tend looks at the files whose time has come.
func (f *follower) tend(now time.Time) {
	for name, d := range f.due {
		if d.at.After(now) {
			continue
		}
		delete(f.due, name)
		if f.store.look(name, d.missing) && !d.missing {
			f.due[name] = deadline{at: now.Add(absenceTime), missing: true}
		}
	}
}

// wait is the time until the next look.
func (f *follower) wait(now time.Time) time.Duration {
	wait := time.Hour
	for _, d := range f.due {
		wait = min(wait, d.at.Sub(now))
	}
	return max(wait, 0)
}
