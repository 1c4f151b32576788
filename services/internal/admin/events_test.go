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

// story puts events into a shard's instance stream. They show the replacement of a lost instance: a snapshot, and the
// events until the lost instance is deleted. It uses one stream, because events of different streams have no defined
// order.
func story(s *fleettest.Shard) {
	first, second := s.Instances[1], s.Instances[0]
	at := func(ms int) *timestamppb.Timestamp {
		return timestamppb.New(fleettest.Now.Add(time.Duration(ms) * time.Millisecond))
	}
	events := []*nstancev1.InstanceEvent{
		{Type: nstancev1.InstanceEvent_TYPE_PENDING_DELETION, Instance: first, Reason: "spot", Drain: true,
			Deadline: at(90000), At: at(-500)},
		{Type: nstancev1.InstanceEvent_TYPE_SNAPSHOT_END},
		{Type: nstancev1.InstanceEvent_TYPE_LOST, Instance: first, Reason: "stream ended", At: at(1)},
		{Type: nstancev1.InstanceEvent_TYPE_CREATING, Instance: second, Replaces: firstID, At: at(3)},
		{Type: nstancev1.InstanceEvent_TYPE_REGISTERED, Instance: second, At: at(2100)},
		{Type: nstancev1.InstanceEvent_TYPE_DELETED, Instance: first, Reason: "lost\x1b[2J", At: at(2200)},
	}
	s.InstanceEvents = make(chan *nstancev1.InstanceEvent, len(events))
	for _, e := range events {
		s.InstanceEvents <- e
	}
}

// followEvents runs the events command until a text has been written, and returns the transcript.
func (c terminalless) followEvents(t *testing.T, replace *strings.Replacer, text string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, errs := &until{texts: []string{text}, end: cancel}, &bytes.Buffer{}
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

func TestEvents(t *testing.T) {
	for name, args := range map[string]string{
		"events": "events --shard us-a", "events-json": "events --shard us-a --output json",
		"events-yaml":    "events --shard us-a --output yaml --changes",
		"events-changes": "events --shard us-a --changes",
	} {
		t.Run(name, func(t *testing.T) {
			cli, a, _, replace := shards(t)
			story(a)
			last := "deleted"
			if strings.Contains(args, "--output") {
				last = "TYPE_DELETED"
			}
			golden(t, filepath.Join("testdata", "cli", name+".txt"), cli.followEvents(t, replace, last,
				strings.Fields(args)...))
		})
	}
}

func TestGroupAndErrorEvents(t *testing.T) {
	cli, a, _, replace := shards(t)
	a.GroupEvents = make(chan *nstancev1.GroupEvent, 2)
	a.GroupEvents <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Status: a.Groups[0]}
	a.GroupEvents <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_DELETE, Group: "batch"}
	golden(t, "testdata/cli/events-groups.txt", cli.followEvents(t, replace, "batch", "events", "--shard", "us-a"))

	cli, a, _, replace = shards(t)
	a.ErrorEvents = make(chan *nstancev1.ErrorEvent, 2)
	a.ErrorEvents <- &nstancev1.ErrorEvent{Kind: "capacity", Group: "workers", Message: "no t4g.medium in us-a",
		At: ago(0)}
	a.ErrorEvents <- &nstancev1.ErrorEvent{Kind: "capacity", Group: "workers", At: ago(0), Resolved: true}
	golden(t, "testdata/cli/events-errors.txt", cli.followEvents(t, replace, "resolved", "events", "--shard", "us-a"))
}

// One shard permanently rejects the client. The command shows that immediately. The other shard's events continue, and
// the exit code shows the failure.
func TestEventsOfSomeShards(t *testing.T) {
	cli, a, b, _ := shards(t)
	b.Before = func(string) error { return status.Error(codes.PermissionDenied, "the operator was removed") }
	story(a)
	ctx, cancel := context.WithCancel(t.Context())
	both := &until{texts: []string{"registered", "the operator was removed"}, end: cancel}
	code := Run(ctx, []string{"events", "--all-shards"}, "1", Environment{
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
	code := Run(t.Context(), []string{"events", "--shard", "us-a"}, "1", Environment{
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
