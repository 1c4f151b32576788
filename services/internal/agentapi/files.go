package agentapi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/filegen"
	"github.com/nstance-kit/nstance/services/internal/shardstate"
)

const (
	// pushTimeout is how long Push waits for a batch to be on its way.
	pushTimeout = 15 * time.Second
	// sendTimeout is how long an agent may take to read a batch before its connection is cut.
	sendTimeout = time.Minute
	// settle is how long after a batch reports are not taken to mean that something is missing.
	settle = 5 * time.Second
)

// errNoStream: the agent has not opened its stream, or does not read from it.
var errNoStream = errors.New("the agent does not take files at the moment")

// Push implements execute.Files: it has the files that an instance lacks made and sent on its open stream, and returns
// when they are on their way. Several calls at once share a batch.
func (s *Service) Push(ctx context.Context, id ident.ID) error {
	leader, err := s.Leader()
	if err != nil {
		return err
	}
	a := s.boardOf(leader).agent(id)
	done := make(chan error, 1)
	a.mu.Lock()
	a.waiting = append(a.waiting, done)
	a.nudge(filesStream)
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	select {
	case err := <-done:
		return err
	case <-leader.Context.Done():
		err = leader.Context.Err()
	case <-ctx.Done():
		err = errNoStream
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting = slices.DeleteFunc(a.waiting, func(ch chan<- error) bool { return ch == done })
	return err
}

// ReceiveFiles sends an instance its files whenever it lacks some.
func (s *Service) ReceiveFiles(req *nstancev1.ReceiveFilesRequest,
	stream grpc.ServerStreamingServer[nstancev1.ReceiveFilesResponse]) error {
	return s.hold(stream.Context(), filesStream, named(req), func(*call) error {
		return nil
	}, func(c *call) error { return s.deliver(c, stream) })
}

// deliver sends one batch and tells those who wait for it. Its error ends the stream.
func (s *Service) deliver(c *call, stream grpc.ServerStreamingServer[nstancev1.ReceiveFilesResponse]) error {
	ctx, a := stream.Context(), c.agent
	a.mu.Lock()
	waiting := a.waiting
	a.waiting = nil
	a.mu.Unlock()
	err, broken := s.batch(ctx, c, stream.Send)
	for _, ch := range waiting {
		ch <- errors.Join(err, broken)
	}
	if err != nil && broken == nil && ctx.Err() == nil && c.leader.Context.Err() == nil {
		a.mu.Lock()
		if !a.needy {
			a.needy = true
			a.again(s.Now())
		}
		a.mu.Unlock()
		if len(waiting) == 0 {
			s.Log.Warn("files not sent", "tenant", c.group.Tenant, "group", c.group.Group, "instance", a.name, "error",
				err)
		}
	}
	return broken
}

// batch makes and sends what the instance lacks. broken ends the stream; another error does not.
func (s *Service) batch(ctx context.Context, c *call, send func(*nstancev1.ReceiveFilesResponse) error) (err,
	broken error) {
	world, a := c.leader.World, c.agent
	view, ok := world.Instance(a.id)
	if !ok || view.Record.State == record.Deleted {
		return nil, errDeleted(a.id)
	}
	group, ok := world.Group(config.GroupKey{Tenant: view.Record.Tenant, Group: view.Record.Group})
	if !ok || group.RuntimeHash == "" {
		return nil, nil // the group is gone: the instance keeps what it has for its last minutes
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.leader.Context, cancel)()
	s.loadKeys(ctx, a)
	result, err := c.leader.Files.Generate(ctx, a.input(group, &view))
	if err != nil {
		err = fmt.Errorf("make files: %w", err)
	}
	if len(result.Issued) > 0 {
		if logErr := c.leader.CertLog.AppendCertLog(ctx, record.CertLog{
			Schema: record.CertLogSchema, Cluster: c.leader.Cluster, Shard: c.leader.Shard, Tenant: view.Record.Tenant,
			Instance: a.id,
			Term:     c.leader.Term, Writer: c.leader.Incarnation, IssuedAt: s.Now().UTC(), Issued: result.Issued,
		}); logErr != nil {
			return errors.Join(err, fmt.Errorf("log certificates: %w", logErr)), nil
		}
	}
	if err != nil && result.Names == nil {
		return err, nil
	}
	// What is incomplete does not take away the hash of an instance that has the current configuration.
	hash, up := result.Hash, view.Report.RuntimeHash == group.RuntimeHash
	if hash == "" && up {
		hash = group.RuntimeHash
	}
	nothing := len(result.Files) == 0 && (up || hash == "")
	if !nothing {
		if broken := s.send(c, result, hash, send); broken != nil {
			return nil, broken
		}
	}
	a.record(&result, group.RuntimeHash, s.Now())
	if err != nil {
		return err, nil
	}
	world.FilesSent(a.id, group.RuntimeHash)
	if !nothing {
		world.Publish(shardstate.InstanceEvent{Type: shardstate.EventFilesPushed, Tenant: view.Record.Tenant,
			Group: view.Record.Group, Instance: a.id,
			Reason: fmt.Sprintf("%d of %d files", len(result.Files), len(result.Names))})
	}
	return nil, nil
}

// send writes a batch to the stream. An agent that does not read loses its connection.
func (s *Service) send(c *call, result filegen.Result, hash string, send func(
	*nstancev1.ReceiveFilesResponse) error) error {
	watchdog := time.AfterFunc(cmp.Or(s.patience, sendTimeout), func() {
		s.Log.Warn("agent does not read its files, connection cut", "instance", c.agent.name)
		c.peer.Close()
	})
	defer watchdog.Stop()
	for _, f := range result.Files {
		if err := send(&nstancev1.ReceiveFilesResponse{Event: &nstancev1.ReceiveFilesResponse_File{
			File: &nstancev1.File{Name: f.Name, Content: f.Content, Kind: f.Kind},
		}}); err != nil {
			return err
		}
	}
	return send(&nstancev1.ReceiveFilesResponse{Event: &nstancev1.ReceiveFilesResponse_Commit{
		Commit: &nstancev1.FilesCommit{RuntimeHash: hash, Names: result.Names},
	}})
}

// input gathers what an instance is and has.
func (a *agent) input(group config.Group, view *shardstate.InstanceView) filegen.Input {
	rec, vm, report := &view.Record, &view.VM, &view.Report
	in := filegen.Input{
		Group: group, Record: *rec, RuntimeHash: report.RuntimeHash,
		// The provider knows best where it put the machine; the name is what the machine said when it was new.
		Address: filegen.Address{IPv4: cmp.Or(vm.IPv4, rec.IPv4, report.IPv4),
			IPv6:     cmp.Or(vm.IPv6, rec.IPv6, report.IPv6),
			Hostname: cmp.Or(rec.Hostname, report.Hostname, vm.Hostname)},
		Have: make(map[string]filegen.Have, len(report.Files)),
		Keys: make(map[string][]byte, 4),
	}
	for _, f := range report.Files {
		in.Have[f.Name] = filegen.Have{SHA256: f.SHA256, Error: f.Error, NotBefore: f.NotBefore, NotAfter: f.NotAfter}
	}
	if report.Keys != nil {
		in.KeySums = make(map[string]string, len(report.Keys))
		for _, k := range report.Keys {
			if k.Error == "" {
				in.KeySums[k.Name] = k.SHA256
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, sent := range a.sent {
		if have := in.Have[name]; sent.pending || have.SHA256 == sent.SHA256 && have.Error == "" {
			in.Have[name] = sent.Have
		}
	}
	for name, pkix := range a.keys {
		in.Keys[name] = pkix
		if in.KeySums != nil {
			// Keys that do not agree with a report are forgotten when it comes; this one came after it.
			in.KeySums[name] = sum(pkix)
		}
	}
	return in
}

// record takes note of a batch that was sent.
func (a *agent) record(result *filegen.Result, want string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Reports that are on their way do not know of the batch yet.
	if soon := now.Add(settle); a.retryAt.Before(soon) {
		a.retryAt = soon
	}
	if a.sent == nil {
		a.sent = map[string]*sentFile{}
	}
	for name := range a.sent {
		if !slices.Contains(result.Names, name) {
			delete(a.sent, name)
		}
	}
	for _, f := range result.Files {
		a.sent[f.Name] = &sentFile{filegen.Have{SHA256: f.SHA256, NotBefore: f.NotBefore, NotAfter: f.NotAfter,
			Basis: f.Basis}, true}
	}
	a.want, a.renewAt, a.ask = want, result.RenewAt, result.Missing
	if len(a.ask) > 0 {
		a.nudge(keysStream)
	}
}

func sum(content []byte) string {
	digest := sha256.Sum256(content)
	return hex.EncodeToString(digest[:])
}
