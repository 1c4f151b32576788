package plan

import (
	"testing"
	"time"
)

func TestFilesDue(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	later, earlier := now.Add(time.Hour), now.Add(-time.Hour)
	for name, test := range map[string]struct {
		state  FilesState
		report FilesReport
		due    bool
		next   FilesState // not compared if due
	}{
		"nothing is known": {},
		"complete": {
			report: FilesReport{Reported: "r1", Sent: "r1", Current: "r1", Full: true, Complete: true, RenewAt: later},
			next:   FilesState{RenewAt: later},
		},
		"a file is missing": {
			report: FilesReport{Reported: "r1", Sent: "r1", Current: "r1", Full: true},
			due:    true,
		},
		"a file is missing, and another leadership sent the files": {
			report: FilesReport{Reported: "r1", Current: "r1", Full: true},
			due:    true,
		},
		"a file is missing, but the next attempt is later": {
			state:  FilesState{Incomplete: true, Attempts: 1, RetryAt: later},
			report: FilesReport{Reported: "r1", Sent: "r1", Current: "r1", Full: true},
			next:   FilesState{Incomplete: true, Attempts: 1, RetryAt: later},
		},
		"the agent did not apply the batch": {
			report: FilesReport{Reported: "r0", Sent: "r1", Current: "r1"},
			due:    true,
		},
		"the configuration changed, which is for PushFiles": {
			report: FilesReport{Reported: "r1", Sent: "r1", Current: "r2", Full: true},
		},
		"a report without files does not complete them": {
			state:  FilesState{Incomplete: true, Attempts: 1, RetryAt: earlier},
			report: FilesReport{Reported: "r1", Sent: "r1", Current: "r1"},
			due:    true,
		},
		"an unchanged report": {
			state: FilesState{RenewAt: later}, next: FilesState{RenewAt: later},
		},
		"an attempt is due at an unchanged report": {
			state: FilesState{Incomplete: true, Attempts: 1, RetryAt: now}, due: true,
		},
		"complete again": {
			state:  FilesState{Incomplete: true, Attempts: 7, RetryAt: later},
			report: FilesReport{Reported: "r1", Current: "r1", Full: true, Complete: true},
		},
		"files may differ": {
			report: FilesReport{Reported: "r1", Current: "r1", Full: true, Complete: true, Recheck: true},
			due:    true,
		},
		"files may differ, and were made": {
			state:  FilesState{Rechecked: true, Attempts: 1, RetryAt: later},
			report: FilesReport{Reported: "r1", Current: "r1", Full: true, Complete: true, Recheck: true},
			next:   FilesState{Rechecked: true},
		},
		"a certificate is due": {
			state: FilesState{RenewAt: now}, due: true,
		},
		"a certificate is due, by a full report": {
			report: FilesReport{Reported: "r1", Current: "r1", Full: true, Complete: true, RenewAt: earlier},
			due:    true,
		},
		"a certificate is due, and was just sent": {
			state: FilesState{RenewAt: earlier, RetryAt: later}, next: FilesState{RenewAt: earlier, RetryAt: later},
		},
	} {
		next, due := FilesDue(test.state, test.report, now)
		switch {
		case due != test.due:
			t.Errorf("%s: due %v, want %v", name, due, test.due)
		case !due && next != test.next:
			t.Errorf("%s: next state %+v, want %+v", name, next, test.next)
		case due && (next.Attempts == 0 || !next.RetryAt.After(now)):
			t.Errorf("%s: the attempt is not counted: %+v", name, next)
		}
	}
}

func TestFilesAreRetriedWithBackoff(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	missing := FilesReport{Reported: "r1", Sent: "r1", Current: "r1", Full: true}
	var state FilesState
	for _, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute,
		8 * time.Minute, 16 * time.Minute, 32 * time.Minute, time.Hour, time.Hour} {
		var due bool
		if state, due = FilesDue(state, missing, now); !due || state.RetryAt.Sub(now) != want {
			t.Fatalf("due %v, next attempt after %s, want %s", due, state.RetryAt.Sub(now), want)
		}
		if _, due := FilesDue(state, missing, state.RetryAt.Add(-1)); due {
			t.Fatalf("sent again before %s have passed", want)
		}
		now = state.RetryAt
	}
}

func TestFilesSentAndFailed(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	renewAt := now.Add(20 * time.Hour)
	sent := FilesSent(FilesState{}, renewAt, now)
	if sent != (FilesState{RenewAt: renewAt, RetryAt: now.Add(FilesSettle)}) {
		t.Errorf("after a batch: %+v, want reports ignored for %s", sent, FilesSettle)
	}
	backedOff := FilesState{Incomplete: true, Attempts: 3, RetryAt: now.Add(time.Hour)}
	if got := FilesSent(backedOff, time.Time{}, now); got != backedOff {
		t.Errorf("a batch shortened the backoff to %+v", got)
	}
	failed := FilesFailed(FilesState{RenewAt: renewAt}, now)
	if failed != (FilesState{Incomplete: true, RenewAt: renewAt, Attempts: 1, RetryAt: now.Add(filesRetryFirst)}) {
		t.Errorf("after a failed batch: %+v", failed)
	}
	if again := FilesFailed(failed, now.Add(time.Minute)); again != failed {
		t.Errorf("the failure of an attempt that FilesDue counted was counted again: %+v", again)
	}
}
