package shards

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

const (
	// firstAnswer limits the time to make a new connection, including TLS and the first answer.
	firstAnswer = 10 * time.Second
	// relist is the time after which the operator lists all instances again. A random delay of up to a tenth is added.
	// Lists are needed because not every change of an instance causes an event.
	relist = time.Minute
	// parallelQueries is the number of concurrent calls about missing instances.
	parallelQueries = 8
	// resubscribe is the pause before the operator restarts a watch that the leader ended because the operator read too
	// slowly.
	resubscribe = 250 * time.Millisecond
)

// session mirrors the state of the leader until the connection ends. met reports whether the server was a leader. The
// error is never nil.
func (s *shard) session(ctx context.Context, conn *grpc.ClientConn) (met bool, err error) {
	client := nstancev1.NewOperatorServiceClient(conn)
	if err := s.verifyLeader(ctx, client); err != nil {
		return false, err
	}
	s.setOnline(conn)
	for {
		err := s.runWatches(ctx, client)
		if status.Code(err) != codes.ResourceExhausted || ctx.Err() != nil {
			return true, err
		}
		s.log.Warn("watch of the shard fell behind; starting it again", "error", err)
		_ = tasks.Sleep(ctx, resubscribe)
	}
}

// verifyLeader makes a call that only a leader answers.
func (s *shard) verifyLeader(ctx context.Context, client nstancev1.OperatorServiceClient) error {
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	answer, err := client.GetConfigStatus(ctx, &nstancev1.GetConfigStatusRequest{})
	if err == nil {
		s.log.Debug("shard leader answered", "leader", answer.GetLeaderId(), "term", answer.GetTerm())
	}
	return err
}

// runWatches runs the three watches and lists the instances regularly, until a watch or the first list fails.
func (s *shard) runWatches(ctx context.Context, client nstancev1.OperatorServiceClient) error {
	group, ctx := errgroup.WithContext(ctx)
	// watchGroups calls the function "whole" after it has read all groups. listRegularly calls it after it has read all
	// instances. After both calls, the mirror is complete.
	parts := make(chan struct{}, 2)
	whole := func() {
		parts <- struct{}{}
		if len(parts) == cap(parts) {
			s.setSynced()
		}
	}
	group.Go(func() error { return s.watchGroups(ctx, client, whole) })
	listed := make(chan struct{})
	group.Go(func() error { return s.watchInstances(ctx, client, listed) })
	group.Go(func() error { return s.listRegularly(ctx, client, listed, whole) })
	group.Go(func() error {
		stream, err := client.WatchErrors(ctx, &nstancev1.WatchErrorsRequest{})
		return operatorclient.Receive(stream, err, func(r *nstancev1.WatchErrorsResponse) {
			e := r.GetEvent()
			s.set.notifyAll(Change{Shard: s.id, Kind: ErrorReported, Group: e.GetGroup(), Instance: e.GetInstanceId(),
				Error: e})
		})
	})
	return group.Wait()
}

func (s *shard) watchGroups(ctx context.Context, client nstancev1.OperatorServiceClient, whole func()) error {
	stream, err := client.WatchGroups(ctx, &nstancev1.WatchGroupsRequest{})
	first := map[string]*nstancev1.GroupStatus{} // nil once the snapshot has ended
	return operatorclient.Receive(stream, err, func(r *nstancev1.WatchGroupsResponse) {
		switch e := r.GetEvent(); e.GetType() {
		case nstancev1.GroupEvent_TYPE_UPSERT:
			if first != nil {
				first[e.GetStatus().GetGroup()] = e.GetStatus()
				return
			}
			s.set.notifyAll(s.setGroup(e.GetStatus(), latest)...)
		case nstancev1.GroupEvent_TYPE_DELETE:
			delete(first, e.GetGroup())
			if first == nil {
				s.set.notifyAll(s.removeGroup(e.GetGroup())...)
			}
		case nstancev1.GroupEvent_TYPE_SNAPSHOT_END:
			if first != nil {
				s.set.notifyAll(s.replaceGroups(first)...)
				first = nil
				whole()
			}
		}
	})
}

// watchInstances watches the instances. The watch begins with a snapshot, which has only the instances that are being
// deleted. After the snapshot, watchInstances closes the channel "listed". Only then may the instances be listed, so
// that no later change is missed.
func (s *shard) watchInstances(ctx context.Context, client nstancev1.OperatorServiceClient,
	listed chan<- struct{}) error {
	stream, err := client.WatchInstances(ctx, &nstancev1.WatchInstancesRequest{})
	first := map[string]Drain{} // nil once the snapshot has ended
	return operatorclient.Receive(stream, err, func(r *nstancev1.WatchInstancesResponse) {
		e := r.GetEvent()
		if e.GetType() == nstancev1.InstanceEvent_TYPE_SNAPSHOT_END {
			if first != nil {
				s.set.notifyAll(s.replaceDrains(first)...)
				first = nil
				close(listed)
			}
			return
		}
		changes := s.setInstance(e.GetInstance(), latest)
		if e.GetType() == nstancev1.InstanceEvent_TYPE_PENDING_DELETION && e.GetDrain() {
			d := drainOf(e, time.Now())
			if first != nil {
				first[e.GetInstance().GetInstanceId()] = d
			} else {
				changes = append(changes, s.setDrain(d)...)
			}
		}
		s.set.notifyAll(changes...)
	})
}

// drainOf returns the drain that an event announces. The parameter now is the time at which the event arrived. The
// deadline is counted from there by the remaining time, because the leader's clock may differ from the operator's.
// Earlier servers do not send the remaining time.
func drainOf(e *nstancev1.InstanceEvent, now time.Time) Drain {
	d := Drain{Instance: e.GetInstance(), Reason: e.GetReason()}
	if e.GetDeadline() == nil {
		return d
	}
	d.Announced = e.GetDeadline().AsTime()
	d.Deadline = d.Announced
	if e.GetRemaining() != nil {
		d.Deadline = now.Add(e.GetRemaining().AsDuration())
	}
	return d
}

// listRegularly waits until the channel "may" is closed. It then lists all instances, calls the function "whole", and
// repeats the list at intervals. It returns an error if the first list fails.
func (s *shard) listRegularly(ctx context.Context, client nstancev1.OperatorServiceClient, may <-chan struct{},
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
		_ = tasks.Sleep(ctx, relist+rand.N(relist/10))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := s.listOnce(ctx, client); err != nil {
			s.log.Debug("failed to list instances; trying again later", "error", err)
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
	changes, missing := s.applyList(answer.GetInstances(), since)
	s.set.notifyAll(changes...)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelQueries)
	for _, id := range missing {
		group.Go(func() error { return s.queryInstance(ctx, client, id) })
	}
	return group.Wait()
}

// queryInstance asks the leader about an instance that is no longer listed.
func (s *shard) queryInstance(ctx context.Context, client nstancev1.OperatorServiceClient, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	since := s.mark()
	answer, err := client.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id})
	switch {
	case err == nil:
		s.set.notifyAll(s.setInstance(answer.GetInstance(), since)...)
	case status.Code(err) == codes.NotFound:
		s.set.notifyAll(s.markUnknown(id, since)...)
	default:
		return err
	}
	return nil
}
