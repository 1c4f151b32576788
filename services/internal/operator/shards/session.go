package shards

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

const (
	// A connection that says nothing for pingAfter is asked whether it lives, and given up after another pingTimeout.
	// gRPC allows no shorter pingAfter.
	pingAfter, pingTimeout = 10 * time.Second, 3 * time.Second
	// connectTimeout is for a connection with TLS and the first answer.
	connectTimeout = 10 * time.Second
	// maxMessage is the largest message that is taken, in bytes.
	maxMessage = 16 << 20
	// relist is how often instances are listed without reason: not every change of an instance is an event. A tenth of
	// it is jitter.
	relist = time.Minute
	// askParallel is how many instances are asked about at a time.
	askParallel = 8
	// resubscribe is the pause before watches that were too slow begin anew.
	resubscribe = 250 * time.Millisecond
)

// session connects to one address and mirrors what its leader says until that ends, which is always an error. met is
// whether it was a leader.
func (s *shard) session(ctx context.Context, addr string) (met bool, err error) {
	// "passthrough": the address is dialled as it is, and its host is the name that the certificate must have.
	conn, err := grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{
		grpc.WithTransportCredentials(s.set.options.Credentials(s.id)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout,
			PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithDisableServiceConfig(), // no retries but ours
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithIdleTimeout(0),
	}, s.set.options.Dial...)...)
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close() }() // fails only if it is closed already
	client := nstancev1.NewOperatorServiceClient(conn)
	if err := s.meet(ctx, client); err != nil {
		return false, err
	}
	s.online(conn)
	for {
		err := s.watch(ctx, client)
		if status.Code(err) != codes.ResourceExhausted || ctx.Err() != nil {
			return true, err
		}
		s.log.Warn("The watch of the shard fell behind and begins anew", "error", err)
		pause(ctx, resubscribe)
	}
}

// meet asks for something that only a leader answers.
func (s *shard) meet(ctx context.Context, client nstancev1.OperatorServiceClient) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	answer, err := client.GetConfigStatus(ctx, &nstancev1.GetConfigStatusRequest{})
	if err == nil {
		s.log.Debug("The shard's leader answers", "leader", answer.GetLeaderId(), "term", answer.GetTerm())
	}
	return err
}

// watch holds the three watches until one of them ends.
func (s *shard) watch(ctx context.Context, client nstancev1.OperatorServiceClient) error {
	group, ctx := errgroup.WithContext(ctx)
	// Whole is called by both that read something whole.
	parts := make(chan struct{}, 2)
	whole := func() {
		parts <- struct{}{}
		if len(parts) == cap(parts) {
			s.synced()
		}
	}
	group.Go(func() error { return s.watchGroups(ctx, client, whole) })
	listed := make(chan struct{})
	group.Go(func() error { return s.watchInstances(ctx, client, listed) })
	group.Go(func() error { return s.list(ctx, client, listed, whole) })
	group.Go(func() error {
		stream, err := client.WatchErrors(ctx, &nstancev1.WatchErrorsRequest{})
		return receive(stream, err, func(r *nstancev1.WatchErrorsResponse) {
			e := r.GetEvent()
			s.set.tell(Change{Shard: s.id, Kind: ErrorReported, Group: e.GetGroup(), Instance: e.GetInstanceId(),
				Error: e})
		})
	})
	return group.Wait()
}

func (s *shard) watchGroups(ctx context.Context, client nstancev1.OperatorServiceClient, whole func()) error {
	stream, err := client.WatchGroups(ctx, &nstancev1.WatchGroupsRequest{})
	first := map[string]*nstancev1.GroupStatus{} // nil once the snapshot has ended
	return receive(stream, err, func(r *nstancev1.WatchGroupsResponse) {
		switch e := r.GetEvent(); e.GetType() {
		case nstancev1.GroupEvent_TYPE_UPSERT:
			if first != nil {
				first[e.GetStatus().GetGroup()] = e.GetStatus()
				return
			}
			s.set.tell(s.setGroup(e.GetStatus(), latest)...)
		case nstancev1.GroupEvent_TYPE_DELETE:
			delete(first, e.GetGroup())
			if first == nil {
				s.set.tell(s.removeGroup(e.GetGroup())...)
			}
		case nstancev1.GroupEvent_TYPE_SNAPSHOT_END:
			if first != nil {
				s.set.tell(s.replaceGroups(first)...)
				first = nil
				whole()
			}
		}
	})
}

// watchInstances follows instances. The snapshot has those that are being deleted alone; when it has ended, listed is
// closed, and all can be listed without missing what happens meanwhile.
func (s *shard) watchInstances(ctx context.Context, client nstancev1.OperatorServiceClient,
	listed chan<- struct{}) error {
	stream, err := client.WatchInstances(ctx, &nstancev1.WatchInstancesRequest{})
	first := map[string]Drain{} // nil once the snapshot has ended
	return receive(stream, err, func(r *nstancev1.WatchInstancesResponse) {
		e := r.GetEvent()
		if e.GetType() == nstancev1.InstanceEvent_TYPE_SNAPSHOT_END {
			if first != nil {
				s.set.tell(s.replaceDrains(first)...)
				first = nil
				close(listed)
			}
			return
		}
		changes := s.setInstance(e.GetInstance(), latest)
		if e.GetType() == nstancev1.InstanceEvent_TYPE_PENDING_DELETION && e.GetDrain() {
			d := Drain{Instance: e.GetInstance(), Reason: e.GetReason()}
			if e.GetDeadline() != nil {
				d.Deadline = e.GetDeadline().AsTime()
			}
			if first != nil {
				first[e.GetInstance().GetInstanceId()] = d
			} else {
				changes = append(changes, s.setDrain(d)...)
			}
		}
		s.set.tell(changes...)
	})
}

// list lists all instances once it may, and then every now and then. The first time has to succeed.
func (s *shard) list(ctx context.Context, client nstancev1.OperatorServiceClient, may <-chan struct{},
	whole func()) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-may:
	}
	if err := s.listOnce(ctx, client); err != nil {
		return fmt.Errorf("list instances: %w", err)
	}
	whole()
	for {
		pause(ctx, relist+rand.N(relist/10))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := s.listOnce(ctx, client); err != nil {
			s.log.Debug("Instances are not listed; trying again later", "error", err)
		}
	}
}

func (s *shard) listOnce(ctx context.Context, client nstancev1.OperatorServiceClient) error {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	since := s.mark()
	answer, err := client.ListInstances(limited, &nstancev1.ListInstancesRequest{})
	if err != nil {
		return err
	}
	changes, missing := s.listInstances(answer.GetInstances(), since)
	s.set.tell(changes...)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(askParallel)
	for _, id := range missing {
		group.Go(func() error { return s.ask(ctx, client, id) })
	}
	return group.Wait()
}

// ask asks what has become of an instance that is no longer listed.
func (s *shard) ask(ctx context.Context, client nstancev1.OperatorServiceClient, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	since := s.mark()
	answer, err := client.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id})
	switch {
	case err == nil:
		s.set.tell(s.setInstance(answer.GetInstance(), since)...)
	case status.Code(err) == codes.NotFound:
		s.set.tell(s.lose(id, since)...)
	default:
		return err
	}
	return nil
}

func receive[R any](stream interface{ Recv() (R, error) }, err error, each func(R)) error {
	for err == nil {
		var r R
		if r, err = stream.Recv(); err == nil {
			each(r)
		}
	}
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Unavailable, "the server ended the watch")
	}
	return err
}
