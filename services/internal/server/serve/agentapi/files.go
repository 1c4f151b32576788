package agentapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/contract/render"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// sendTimeout is the time in which an agent must read a batch of files. If the agent takes longer, the server closes
// its connection.
const sendTimeout = time.Minute

// Push implements execute.Files. It makes the agent's stream send the files that the instance lacks, and returns
// immediately. If the stream is not open, the files are sent when it opens. If a batch fails, plan.FilesDue decides
// when it is sent again.
func (s *Service) Push(_ context.Context, id ident.ID) error {
	leader, err := s.Leader()
	if err != nil {
		return err
	}
	view, ok := leader.State.Instance(id)
	if !ok {
		return nil
	}
	a := s.boardOf(leader).agent(id)
	a.mu.Lock()
	a.wakeStream(filesStream)
	a.mu.Unlock()
	// FilesSent records that the group's configuration was sent to the instance, so that the planner does not push it
	// again. If a batch fails, the stream sends the files again when plan.FilesDue says so.
	if group, ok := leader.State.Group(config.GroupKey{Tenant: view.Record.Tenant, Group: view.Record.Group}); ok {
		leader.State.FilesSent(id, group.RuntimeHash)
	}
	return nil
}

// Drain implements execute.Files. It wakes the agent's stream, which then sends the drain.
func (s *Service) Drain(id ident.ID) {
	leader, err := s.Leader()
	if err != nil {
		return
	}
	a := s.boardOf(leader).agent(id)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wakeStream(filesStream)
}

// Role implements execute.Files. It wakes the agent's stream, which then sends the role.
func (s *Service) Role(id ident.ID) { s.Drain(id) }

// ReceiveFiles sends an agent the files that its instance lacks, at the start of the stream and whenever the instance
// lacks files again. If the agent asks for key requests, health checks, numbers to read, the role or the drain, the
// stream also sends these. It sends the drain again if its deadline becomes earlier.
func (s *Service) ReceiveFiles(req *nstancev1.ReceiveFilesRequest,
	stream grpc.ServerStreamingServer[nstancev1.ReceiveFilesResponse]) error {
	checks := req.GetHealthChecksVersion()
	if err := checkText("health_checks_version", checks, maxVersion); err != nil {
		err = status.Errorf(codes.InvalidArgument, "%v", err)
		s.logRefusal(stream.Context(), streamNames[filesStream], err)
		return err
	}
	var deadline time.Time // of the drain that was sent last
	sendDrain := func(c *call) error {
		message, ends := s.drainOf(c)
		switch {
		case message == nil || !deadline.IsZero() && !ends.Before(deadline):
			return nil
		case !req.GetWithDrain():
			c.leader.State.HookImpossible(c.agent.id)
			return nil
		}
		deadline = ends
		return stream.Send(&nstancev1.ReceiveFilesResponse{
			Event: &nstancev1.ReceiveFilesResponse_Drain{Drain: message}})
	}
	role := plan.Role("") // that was sent last
	sendRole := func(c *call) error {
		rec, _, ok := c.leader.State.Record(c.agent.id)
		if !ok || !req.GetWithRole() || role == plan.RoleOf(&rec) {
			return nil
		}
		role = plan.RoleOf(&rec)
		return stream.Send(&nstancev1.ReceiveFilesResponse{
			Event: &nstancev1.ReceiveFilesResponse_Role{Role: &nstancev1.Role{Role: instanceRoles[role]}}})
	}
	// The health checks are sent before the batch. When the agent has the batch, it reports the new configuration. By
	// then it should also have the health checks.
	beforeBatch := func(c *call) error {
		return cmp.Or(sendRole(c), s.sendHealthChecks(c, req, &checks, stream.Send),
			s.sendNumbers(c, req, stream.Send), sendDrain(c))
	}
	requestKeys := func(c *call) error {
		if !req.GetWithKeyRequests() {
			return nil
		}
		return c.agent.requestKeys(func(keys *nstancev1.KeyGenRequestsResponse) error {
			return stream.Send(&nstancev1.ReceiveFilesResponse{
				Event: &nstancev1.ReceiveFilesResponse_KeyRequests{KeyRequests: keys}})
		})
	}
	return s.serveStream(stream.Context(), filesStream, instanceOf(req), func(c *call) error {
		if req.GetWithKeyRequests() {
			s.findMissingKeys(stream.Context(), c)
		}
		if err := beforeBatch(c); err != nil {
			return err
		}
		return requestKeys(c)
	}, func(c *call) error {
		if err := beforeBatch(c); err != nil {
			return err
		}
		if err := s.deliverBatch(c, stream); err != nil {
			return err
		}
		return requestKeys(c)
	})
}

// instanceRoles are the roles in the agents' protocol.
var instanceRoles = map[plan.Role]nstancev1.InstanceRole{plan.RoleSpare: nstancev1.InstanceRole_INSTANCE_ROLE_SPARE,
	plan.RoleMember: nstancev1.InstanceRole_INSTANCE_ROLE_MEMBER}

// sendHealthChecks sends the health checks of the instance's group, if the agent asks for them and does not have their
// current version. sent points to the version that the agent has.
func (s *Service) sendHealthChecks(c *call, req *nstancev1.ReceiveFilesRequest, sent *string,
	send func(*nstancev1.ReceiveFilesResponse) error) error {
	group, ok := c.leader.State.Group(c.group)
	if !ok || !req.GetWithHealthChecks() || group.HealthChecksVersion() == *sent {
		return nil
	}
	checks := &nstancev1.HealthChecks{Version: group.HealthChecksVersion()}
	for _, name := range slices.Sorted(maps.Keys(group.HealthChecks)) {
		checks.Checks = append(checks.Checks, healthCheck(name, group.HealthChecks[name]))
	}
	if err := send(&nstancev1.ReceiveFilesResponse{
		Event: &nstancev1.ReceiveFilesResponse_HealthChecks{HealthChecks: checks}}); err != nil {
		return err
	}
	*sent = checks.GetVersion()
	return nil
}

// sendNumbers sends the numbers that the agent must read, if it asks for them and does not read them already.
func (s *Service) sendNumbers(c *call, req *nstancev1.ReceiveFilesRequest,
	send func(*nstancev1.ReceiveFilesResponse) error) error {
	group, ok := c.leader.State.Group(c.group)
	if !ok || !req.GetWithVmNumbers() {
		return nil
	}
	numbers := group.VMNumbers()
	if !c.agent.noteNumbers(c.stream, c.group, req.GetVmNumbers(), idsOf(numbers)) {
		return nil
	}
	message := &nstancev1.VmNumbers{}
	for _, n := range numbers {
		out := &nstancev1.VmNumber{Id: n.ID(), Port: uint32(n.Port), Path: n.Path,
			In: &nstancev1.VmNumber_Metric{Metric: n.Metric}}
		if n.Metric == "" {
			out.In = &nstancev1.VmNumber_Json{Json: n.JSON}
		}
		message.Numbers = append(message.Numbers, out)
	}
	return send(&nstancev1.ReceiveFilesResponse{Event: &nstancev1.ReceiveFilesResponse_VmNumbers{VmNumbers: message}})
}

func idsOf(numbers []*config.ScalingVM) (ids []uint64) {
	for _, n := range numbers {
		ids = append(ids, n.ID())
	}
	return ids
}

// drainOf returns the request to run the drain hook and the deadline of the drain. It returns nil unless a drain of the
// instance waits for the hook.
func (s *Service) drainOf(c *call) (*nstancev1.Drain, time.Time) {
	view, ok := c.leader.State.Instance(c.agent.id)
	hook := c.leader.State.DrainHook(c.agent.id)
	if !ok || hook == nil || view.Record.State != record.Deleting || view.Plan.HookEnded {
		return nil, time.Time{}
	}
	return &nstancev1.Drain{Reason: view.Record.DeleteReason, Command: hook.Exec,
		Remaining: durationpb.New(max(0, view.Plan.DeleteDeadline.Sub(s.Now()))),
		Timeout:   durationpb.New(hook.Timeout.D())}, view.Plan.DeleteDeadline
}

// healthCheck converts a health check of a template to the form that agents receive.
func healthCheck(name string, check config.HealthCheck) *nstancev1.HealthCheck {
	out := &nstancev1.HealthCheck{Name: name, Interval: durationpb.New(check.Interval.D()),
		Timeout: durationpb.New(check.Timeout.D()), StartPeriod: durationpb.New(check.StartPeriod.D()),
		FailureThreshold: uint32(*check.FailureThreshold), SuccessThreshold: uint32(*check.SuccessThreshold)}
	if h := check.HTTP; h != nil {
		out.Probe = &nstancev1.HealthCheck_Http{Http: &nstancev1.HttpProbe{Port: uint32(h.Port), Path: h.Path,
			Status: uint32(h.Status)}}
	} else {
		out.Probe = &nstancev1.HealthCheck_Exec{Exec: &nstancev1.ExecProbe{Command: check.Exec}}
	}
	return out
}

// deliverBatch makes and sends one batch. It returns an error only if the stream is broken. For any other failure, it
// reports an error event about the instance. The next successful batch resolves that error.
func (s *Service) deliverBatch(c *call, stream grpc.ServerStreamingServer[nstancev1.ReceiveFilesResponse]) error {
	ctx, a := stream.Context(), c.agent
	err, broken := s.sendBatch(ctx, c, stream.Send)
	if broken != nil || ctx.Err() != nil || c.leader.Context.Err() != nil {
		return broken
	}
	fault := shardstate.GroupError(plan.AlertStorage, c.group, a.id)
	if err == nil {
		c.leader.State.ResolveError(fault)
		return nil
	}
	a.mu.Lock()
	a.files = plan.FilesFailed(a.files, s.Now())
	a.mu.Unlock()
	s.Log.Warn("files not sent", "tenant", c.group.Tenant, "group", c.group.Group, "instance", a.name, "error", err)
	c.leader.State.RaiseError(fault, fmt.Sprintf("%s: %v", plan.PushFiles, err))
	return nil
}

// sendBatch makes and sends the files that the instance lacks. An error in `broken` ends the stream. An error in `err`
// is a failure after which the stream can still be used.
func (s *Service) sendBatch(ctx context.Context, c *call, send func(*nstancev1.ReceiveFilesResponse) error) (err,
	broken error) {
	state, a := c.leader.State, c.agent
	view, ok := state.Instance(a.id)
	if ok && view.Plan.LastReport.IsZero() {
		a.mu.Lock()
		a.claimsMissing = true // before the view is read again: the first report is in the view, or wakes the stream
		a.mu.Unlock()
		view, ok = state.Instance(a.id)
	}
	if !ok || view.Record.State == record.Deleted {
		return nil, errDeleted(a.id)
	}
	group, ok := state.Group(config.GroupKey{Tenant: view.Record.Tenant, Group: view.Record.Group})
	if !ok || group.RuntimeHash == "" {
		return nil, nil // the group was deleted: the instance keeps its files until it is deleted too
	}
	if mayBeCertified(&view.Record) != nil || view.Record.Preserved != nil {
		return nil, nil // it keeps its files until it is terminated
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.leader.Context, cancel)()
	s.loadKeys(ctx, a)
	result, err := c.leader.Files.Generate(ctx, a.generatorInput(group, &view))
	if err != nil {
		err = fmt.Errorf("make files: %w", err)
	}
	if len(result.Issued) > 0 {
		if logErr := c.leader.Store.AppendCertLog(ctx, record.CertLog{
			Schema: record.CertLogSchema, Cluster: c.leader.Cluster, Shard: c.leader.Shard, Tenant: view.Record.Tenant,
			Instance: a.id,
			Term:     c.leader.Term, Writer: c.leader.Incarnation, IssuedAt: s.Now().UTC(), Issued: result.Issued,
		}); logErr != nil {
			return errors.Join(err, fmt.Errorf("log certificates: %w", logErr)), nil
		}
		// The leader may have decided to delete the instance while the certificates were made. In that case, do not
		// send the certificates.
		if rec, _, ok := state.Record(a.id); !ok || mayBeCertified(&rec) != nil {
			return nil, nil
		}
	}
	if err != nil && result.Names == nil {
		return err, nil
	}
	// If the instance already has the current configuration, the server sends this batch with that configuration's
	// hash, even if the batch is incomplete.
	hash, current := result.Hash, view.Report.RuntimeHash == group.RuntimeHash
	if hash == "" && current {
		hash = group.RuntimeHash
	}
	nothing := len(result.Files) == 0 && (current || hash == "")
	if !nothing {
		if broken := s.sendFiles(c, result, hash, send); broken != nil {
			return nil, broken
		}
	}
	a.recordBatch(&result, group.RuntimeHash, s.Now())
	if err != nil {
		return err, nil
	}
	state.FilesSent(a.id, group.RuntimeHash)
	if !nothing {
		state.Publish(shardstate.NewEvent(shardstate.EventFilesPushed, &view.Record,
			fmt.Sprintf("%d of %d files", len(result.Files), len(result.Names))))
	}
	return nil, nil
}

// sendFiles writes a batch to the stream. It closes the connection of an agent that does not read the batch in time.
func (s *Service) sendFiles(c *call, result filegen.Result, hash string, send func(
	*nstancev1.ReceiveFilesResponse) error) error {
	watchdog := time.AfterFunc(cmp.Or(s.sendTimeout, sendTimeout), func() {
		s.Log.Warn("agent does not read its files, connection closed", "instance", c.agent.name)
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
		Commit: &nstancev1.FilesCommit{RuntimeHash: hash, Names: result.Names, Sha256: result.Sums},
	}})
}

// generatorInput returns the data from which the generator makes the files of an instance.
func (a *agent) generatorInput(group config.Group, view *shardstate.InstanceView) filegen.Input {
	rec, vm, report := &view.Record, &view.VM, &view.Report
	in := filegen.Input{
		Group: group, Record: *rec, RuntimeHash: report.RuntimeHash,
		// The record has the addresses and host name that the provider gave at the registration. Since then, the
		// provider may have given more of them.
		Address: filegen.Address{IPv4: cmp.Or(rec.IPv4, vm.IPv4), IPv6: cmp.Or(rec.IPv6, vm.IPv6),
			Hostname: cmp.Or(rec.Hostname, vm.Hostname, rec.ID.String())},
		Claimed: render.Claimed{Hostname: report.Hostname, IP4: report.IPv4, IP6: report.IPv6},
		Have:    make(map[string]filegen.Have, len(report.Files)),
		Keys:    make(map[string][]byte, 4),
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
		if have := in.Have[name]; sent.unconfirmed || have.SHA256 == sent.SHA256 && have.Error == "" {
			in.Have[name] = sent.Have
		}
	}
	for name, pkix := range a.keys {
		in.Keys[name] = pkix
		if in.KeySums != nil {
			// A report makes the server forget the submitted keys that the report does not list (see forgetKeys). So
			// the agent still has this key: its last report lists the key, or the agent submitted the key after that
			// report.
			in.KeySums[name] = filegen.Sum(pkix)
		}
	}
	return in
}

// recordBatch notes that a batch was sent for the runtime configuration with the given hash.
func (a *agent) recordBatch(result *filegen.Result, hash string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.files = plan.FilesSent(a.files, result.RenewAt, now)
	a.sentAt = now
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
	a.sentHash, a.wantedKeys = hash, result.Missing
	if len(a.wantedKeys) > 0 {
		a.wakeStream(keysStream)
	}
}
