package admin

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

// until is a writer that receives a command's output. It ends the command as soon as the output contains all given
// texts.
type until struct {
	mu    sync.Mutex
	texts []string
	out   bytes.Buffer
	end   func()
}

func (u *until) Write(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, err := u.out.Write(p)
	for _, text := range u.texts {
		if !strings.Contains(u.out.String(), text) {
			return n, err
		}
	}
	u.end()
	return n, err
}

// story makes a shard send events after those that are stored: the end of a replacement.
func story(s *fleettest.Shard) {
	at := func(ms int) *timestamppb.Timestamp {
		return timestamppb.New(fleettest.Now.Add(time.Duration(ms) * time.Millisecond))
	}
	events := []*nstancev1.JournalEvent{
		{Position: "7-4", At: at(2100), Kind: "instance_registered", Group: "workers", InstanceId: secondID,
			Actor: "agent", TookSeconds: 2.1},
		{Position: "7-5", At: at(2200), Kind: "instance_deleted", Group: "workers", InstanceId: firstID,
			Message: "lost\x1b[2J"},
	}
	s.JournalEvents = make(chan *nstancev1.JournalEvent, len(events))
	for _, e := range events {
		s.JournalEvents <- e
	}
}

// followEvents runs the events command until a text has been written, and returns the transcript.
func (c terminalless) followEvents(t *testing.T, replace *strings.Replacer, text string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, errs := &until{texts: []string{"deleted", text}, end: cancel}, &bytes.Buffer{}
	code := Run(ctx, args, "1.2.3", Environment{
		Stdin: strings.NewReader(""), Stdout: out, Stderr: errs, Getenv: func(name string) string {
			return c.env[name]
		}, Now: fleettest.Clock, Rand: fleettest.Rand(1),
	})
	if code != exitOK {
		t.Errorf("exit code %d: %s", code, errs)
	}
	return replace.Replace("$ nstance-admin " + strings.Join(args, " ") + "\n" + out.out.String() + "--- stderr\n" +
		errs.String())
}

// TestEvents follows a shard: first the stored events, then new ones, each once.
func TestEvents(t *testing.T) {
	for name, args := range map[string]string{
		"events": "events -f --shard us-a", "events-wide": "events -f --shard us-a -o wide --limit 2",
		"events-json": "events -f --shard us-a -o json --limit 1",
		"events-yaml": "events -f --shard us-a -o yaml --limit 0 --since 2h",
	} {
		t.Run(name, func(t *testing.T) {
			cli, a, _, replace := shards(t)
			story(a)
			golden(t, filepath.Join("testdata", "cli", name+".txt"), cli.followEvents(t, replace, "lost",
				strings.Fields(args)...))
		})
	}
}

func TestSince(t *testing.T) {
	for text, want := range map[string]string{
		"90m": "2026-07-28T08:30:00Z", "1d": "2026-07-27T10:00:00Z", "1d12h": "2026-07-26T22:00:00Z",
		"2026-07-01": "2026-07-01T00:00:00Z", "2026-07-01T02:00:00+02:00": "2026-07-01T00:00:00Z",
		"-1h": "", "1x": "", "d": "", "1d-25h": "", "yesterday": "",
	} {
		var from since
		err := from.Set(text)
		if got := stamp(fleet.Time(from.time(fleettest.Now))); err != nil != (want == "") ||
			err == nil && got != want {
			t.Errorf("%q: %s %v, want %q", text, got, err, want)
		}
	}
}

// One shard permanently rejects the client. The command shows that immediately. The other shard's events continue, and
// the exit code shows the failure.
func TestEventsOfSomeShards(t *testing.T) {
	cli, a, b, _ := shards(t)
	b.Before = func(string) error { return status.Error(codes.PermissionDenied, "the operator was removed") }
	story(a)
	ctx, cancel := context.WithCancel(t.Context())
	both := &until{texts: []string{"registered", "the operator was removed"}, end: cancel}
	code := Run(ctx, []string{"events", "--follow", "--all-shards"}, "1", Environment{
		Stdout: both, Stderr: both, Getenv: func(name string) string {
			return cli.env[name]
		}, Now: fleettest.Clock, Rand: fleettest.Rand(1),
	})
	if code != exitFailure || !strings.Contains(both.out.String(), "1 of 2 shards could not be followed") {
		t.Error(code, both.out.String())
	}
}

// The command ends when its reader closes the output.
func TestEventsEndWhenOutputCloses(t *testing.T) {
	cli, a, _, _ := shards(t)
	story(a)
	errs := &bytes.Buffer{}
	code := Run(t.Context(), []string{"events", "-f", "--shard", "us-a"}, "1", Environment{
		Stdout: closed{}, Stderr: errs, Getenv: func(name string) string {
			return cli.env[name]
		}, Now: fleettest.Clock, Rand: fleettest.Rand(1),
	})
	if code != exitFailure || !strings.Contains(errs.String(), "write event: broken pipe") {
		t.Error(code, errs.String())
	}
}

type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, errBroken }

var errBroken = &brokenPipe{}

type brokenPipe struct{}

func (*brokenPipe) Error() string { return "broken pipe" }

func (u *until) String() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.out.String()
}
