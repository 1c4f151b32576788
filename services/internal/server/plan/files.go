package plan

import (
	"time"

	"github.com/nstance-kit/nstance/services/contract/reconnect"
)

const (
	filesRetryFirst = 30 * time.Second // after the first attempt to complete an instance's files, doubled after each
	filesRetryMost  = time.Hour
	// FilesSettle is the time after a batch in which reports of missing files are ignored: the agent may have sent them
	// before it received the batch.
	FilesSettle = 5 * time.Second
)

// FilesState decides when the server sends the files of one instance again although the group's configuration has not
// changed. The reason is missing files, or a certificate that is due for renewal. When the configuration changes, the
// action PushFiles sends the files instead. The zero value means that nothing is known of the instance.
type FilesState struct {
	// Incomplete means that the last full report lacked a file or had an error, or that the last batch was not sent.
	Incomplete bool
	// RenewAt is when the first certificate is due for renewal; zero if there is none.
	RenewAt time.Time
	// Attempts counts the batches since the files were last complete. RetryAt is the earliest time of the next batch.
	Attempts int
	RetryAt  time.Time
	// Rechecked means that a batch was made because of FilesReport.Recheck.
	Rechecked bool
}

// FilesReport is what an agent's report says about the files on its instance.
type FilesReport struct {
	// Reported, Sent and Current are hashes of runtime configurations. Reported is the hash in the agent's report. Sent
	// is the hash of the last batch that this leader sent; "": none. Current is the hash of the group's configuration.
	Reported, Sent, Current string
	// Full means that the report lists the files. Complete and RenewAt are valid only then. Complete means that the
	// list has each file of the group, as it was sent and without errors.
	Full, Complete bool
	RenewAt        time.Time
	// Recheck means that the instance's files may contain outdated CA certificates, although the group's configuration
	// has not changed.
	Recheck bool
}

// FilesDue returns the state after a report, and whether a batch must be sent now. If so, Attempts in the new state
// already counts this batch.
func FilesDue(s FilesState, report FilesReport, now time.Time) (next FilesState, due bool) {
	if report.Full {
		s.RenewAt = report.RenewAt
	}
	// Change the state only if the agent has the files of the current configuration, or if the last batch contained
	// them. In all other cases, the action PushFiles sends new files.
	if report.Current != "" && (report.Reported == report.Current || report.Sent == report.Current) {
		s.Incomplete = report.Reported != report.Current || report.Full && !report.Complete ||
			!report.Full && s.Incomplete
		if !s.Incomplete {
			s.Attempts, s.RetryAt = 0, time.Time{}
		}
	}
	if report.Full && report.Recheck && !s.Rechecked {
		s.Rechecked = true
		return filesAttempted(s, now), true
	}
	renew := !s.RenewAt.IsZero() && !now.Before(s.RenewAt)
	if !s.Incomplete && !renew || now.Before(s.RetryAt) {
		return s, false
	}
	return filesAttempted(s, now), true
}

// FilesSent returns the state after a batch was sent. renewAt is when the first certificate is due for renewal.
func FilesSent(s FilesState, renewAt, now time.Time) FilesState {
	s.RenewAt = renewAt
	if settled := now.Add(FilesSettle); s.RetryAt.Before(settled) {
		s.RetryAt = settled
	}
	return s
}

// FilesFailed returns the state after a batch could not be made or sent.
func FilesFailed(s FilesState, now time.Time) FilesState {
	if s.Incomplete {
		return s // FilesDue has counted the attempt
	}
	s.Incomplete = true
	return filesAttempted(s, now)
}

func filesAttempted(s FilesState, now time.Time) FilesState {
	s.RetryAt = now.Add(reconnect.Backoff(filesRetryFirst, filesRetryMost, s.Attempts+1))
	s.Attempts++
	return s
}
