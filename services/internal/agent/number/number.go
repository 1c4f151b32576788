// Package number reads numbers from programs on the VM, for the scaling of the instance's group.
//
// A [Reader] reads all numbers shortly before each report, in the background, so that a program that hangs delays no
// report. A number that cannot be read has a reason instead of a value.
package number

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/agent/check"
	"github.com/nstance-kit/nstance/services/internal/agent/loopback"
)

const (
	// timeout is the time in which a program must have sent its whole answer.
	timeout = 2 * time.Second
	// lead is the time from the begin of a reading to the report. It is a bit longer than timeout.
	lead = timeout + 500*time.Millisecond
	// maxAnswer is the maximum size of an answer.
	maxAnswer = 1 << 20
	// maxReading is the maximum number of answers that are read at a time.
	maxReading = 4
	// minAge is the least age at which a value is too old to be reported. It is older than two reports otherwise.
	minAge = 10 * time.Second
	// minSpan is the least time over which the growth of a counter is measured.
	minSpan = 5 * time.Second
	// accept asks programs that know several formats for those that the agent reads.
	accept = "text/plain;version=0.0.4, application/json;q=0.9, */*;q=0.1"
)

// Fetch returns what a program on the VM serves at a port and path. The caller must close it.
type Fetch func(ctx context.Context, port uint32, path string) (io.ReadCloser, error)

// Local sends a request to the loopback address of this machine.
func Local(ctx context.Context, port uint32, path string) (io.ReadCloser, error) {
	answer, err := loopback.Get(ctx, port, path, accept)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		_ = answer.Body.Close()
		return nil, fmt.Errorf("status %d", answer.StatusCode)
	}
	return answer.Body, nil
}

// Reader reads numbers. Its methods are safe for concurrent use.
type Reader struct {
	fetch   Fetch
	changed func()
	wake    chan struct{} // signals that news or next has changed

	mu       sync.Mutex
	numbers  []*state // in the order in which the server sent them; the slice is never changed
	interval time.Duration
	// next is the time of the reading before the next report; zero: it is over. last is the time of the last reading.
	next, last time.Time
	// news asks for a reading, and a report, immediately.
	news bool
}

// state is a number as it was last read.
type state struct {
	spec *nstancev1.VmNumber
	// Reader.mu guards the rest.
	value   float64
	at      time.Time // of the value; zero: there is none yet
	problem string    // why the last reading gave no value; "": it gave one
	// raw is the last value of a counter, and rawAt its time; zero: none.
	raw   float64
	rawAt time.Time
}

// New returns a reader without numbers. changed is called when the numbers that the server has asked for are read for
// the first time; it must not block.
func New(fetch Fetch, changed func()) *Reader {
	return &Reader{fetch: fetch, changed: changed, wake: make(chan struct{}, 1)}
}

// Set replaces the list of numbers. A number that is the same as before keeps its value. New ones are read immediately.
func (r *Reader) Set(specs []*nstancev1.VmNumber) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.numbers
	r.numbers = nil
	for _, spec := range specs {
		s := &state{spec: spec}
		if i := slices.IndexFunc(before, func(b *state) bool { return b.spec.GetId() == spec.GetId() }); i >= 0 {
			s = before[i]
		}
		r.numbers = append(r.numbers, s)
	}
	r.news = len(r.numbers) > 0
	r.signal()
}

// IDs returns the IDs of the numbers.
func (r *Reader) IDs() (ids []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.numbers {
		ids = append(ids, n.spec.GetId())
	}
	return ids
}

// Due says that the agent reports after a time, and after that at an interval. The numbers are read shortly before. If
// they were last read before the previous report, for example because the agent had no session, they are also read
// immediately.
func (r *Reader) Due(in, interval time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.interval, r.next = interval, now.Add(max(in-lead, in/2))
	if len(r.numbers) > 0 && now.Sub(r.last) > r.maxAge() {
		r.news = true
	}
	r.signal()
}

// maxAge returns the age at which a value is too old to be reported. The caller must hold mu.
func (r *Reader) maxAge() time.Duration { return max(2*r.interval, minAge) }

func (r *Reader) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Report returns the states of all numbers.
func (r *Reader) Report() (out []*nstancev1.VmNumberState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.numbers {
		s := &nstancev1.VmNumberState{Id: n.spec.GetId()}
		switch {
		case n.problem != "":
			s.Result = &nstancev1.VmNumberState_Problem{Problem: n.problem}
		case n.at.IsZero():
		case time.Since(n.at) > r.maxAge():
			s.Result = &nstancev1.VmNumberState_Problem{Problem: "it was not read for some time"}
		default:
			s.Result = &nstancev1.VmNumberState_Value{Value: n.value}
		}
		out = append(out, s)
	}
	return out
}

// Run reads the numbers until ctx ends.
func (r *Reader) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.wake:
		case <-timer.C:
		}
		r.mu.Lock()
		numbers, news := r.numbers, r.news
		scheduled := !r.next.IsZero() && !time.Now().Before(r.next)
		if scheduled {
			r.next = time.Time{}
		}
		r.news = false
		if news || scheduled && len(numbers) > 0 {
			r.last = time.Now()
			r.mu.Unlock()
			r.readAll(ctx, numbers)
			if news && ctx.Err() == nil {
				r.changed()
			}
			r.mu.Lock()
		}
		if timer.Stop(); !r.next.IsZero() {
			timer.Reset(time.Until(r.next))
		}
		r.mu.Unlock()
	}
}

// place is where numbers are read.
type place struct {
	port uint32
	path string
}

// readAll reads all numbers once.
func (r *Reader) readAll(ctx context.Context, numbers []*state) {
	byPlace := map[place][]*state{}
	for _, n := range numbers {
		at := place{n.spec.GetPort(), n.spec.GetPath()}
		byPlace[at] = append(byPlace[at], n)
	}
	var running sync.WaitGroup
	slots := make(chan struct{}, maxReading)
	for at, numbers := range byPlace {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			r.read(ctx, at, numbers)
		})
	}
	running.Wait()
}

// read reads the numbers of one place.
func (r *Reader) read(ctx context.Context, at place, numbers []*state) {
	document, err := r.document(ctx, at)
	if ctx.Err() != nil {
		return
	}
	now := time.Now()
	for _, n := range numbers {
		value, counter, err := 0.0, false, err
		if err == nil {
			value, counter, err = parse(document, n.spec)
		}
		if err == nil {
			err = checkValue(value)
		}
		r.mu.Lock()
		switch {
		case err != nil:
			n.problem = check.Line(fmt.Sprintf("127.0.0.1:%d%s: %s", at.port, at.path, reason(err)))
		case counter:
			n.grow(value, now)
		default:
			n.value, n.at, n.problem = value, now, ""
		}
		r.mu.Unlock()
	}
}

// grow notes a value of a counter. The number is the growth of the counter per second. A counter that went back has
// started at 0 again.
func (n *state) grow(raw float64, now time.Time) {
	span := now.Sub(n.rawAt)
	switch {
	case n.rawAt.IsZero():
		n.at, n.problem = time.Time{}, "" // known after the next reading
	case span < minSpan:
		return
	default:
		growth := raw - n.raw
		if growth < 0 {
			growth = raw
		}
		n.value, n.at, n.problem = growth/span.Seconds(), now, ""
	}
	n.raw, n.rawAt = raw, now
}

// checkValue refuses values by which no group can be scaled.
func checkValue(value float64) error {
	if math.IsNaN(value) || math.IsInf(value, 0) || value < 0 {
		return fmt.Errorf("the value %v", value)
	}
	return nil
}

// document returns what a program serves at a place.
func (r *Reader) document(ctx context.Context, at place) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body, err := r.fetch(ctx, at.port, at.path)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	document, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	if err == nil && len(document) > maxAnswer {
		err = fmt.Errorf("an answer of more than %d KiB", maxAnswer>>10)
	}
	return document, err
}

// reason returns the reason of a failed request.
func reason(err error) string {
	var errno syscall.Errno
	var request *url.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no complete answer within %s", timeout)
	case errors.As(err, &errno): // without the addresses
		return errno.Error()
	case errors.As(err, &request):
		return request.Err.Error()
	}
	return err.Error()
}
