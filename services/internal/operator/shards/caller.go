package shards

import (
	"context"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// callTimeout limits one call.
const callTimeout = 10 * time.Second

// leaderClient calls a shard's leader and updates the mirror from the answers. So when a call returns, the mirror
// already shows the change that the call made.
type leaderClient struct{ *shard }

var _ grpc.ClientConnInterface = leaderClient{}

// Invoke implements grpc.ClientConnInterface.
func (c leaderClient) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := c.connection()
	if err != nil && method == nstancev1.OperatorService_RenewCertificate_FullMethodName {
		// After an interrupted renewal, a leader refuses all other calls with the replaced key: there is no session.
		client := c.newClient()
		defer client.Close()
		return client.Call(limited, func(ctx context.Context, to *grpc.ClientConn) error {
			return to.Invoke(ctx, method, args, reply, opts...)
		})
	}
	if err != nil {
		return err
	}
	since, began := c.mark(), c.now()
	err = conn.Invoke(limited, method, args, reply, opts...)
	if status.Code(err) == codes.Canceled && ctx.Err() == nil {
		err = status.Error(codes.Unavailable, "the connection to the shard was lost during the call")
	}
	c.set.metrics.observeCall(c.id, path.Base(method), status.Code(err), c.now().Sub(began))
	if err == nil {
		c.set.notifyAll(c.updateMirror(since, args, reply)...)
	}
	return err
}

// NewStream implements grpc.ClientConnInterface.
func (c leaderClient) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn, err := c.connection()
	if err != nil {
		return nil, err
	}
	return conn.NewStream(ctx, desc, method, opts...)
}

func (c leaderClient) connection() (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return nil, status.Errorf(codes.Unavailable, "shard %s is unreachable: %s", c.id, reason(c.lostErr))
	}
	return c.conn, nil
}

// updateMirror updates the mirror from the answer to a call. since is the number that mark returned before the call.
func (c leaderClient) updateMirror(since uint64, args, reply any) []Change {
	switch r := reply.(type) {
	case *nstancev1.UpsertGroupResponse:
		return c.setGroup(r.GetGroup(), since)
	case *nstancev1.DeleteGroupResponse:
		if request, ok := args.(*nstancev1.DeleteGroupRequest); ok && !r.GetRestoredStatic() {
			return c.markDeleting(request.GetGroup(), since)
		}
	case *nstancev1.CreateInstanceResponse:
		return c.setInstance(r.GetInstance(), since)
	case *nstancev1.DeleteInstanceResponse:
		changes := c.setInstance(r.GetInstance(), since)
		if r.GetGroup() != nil {
			changes = append(changes, c.setGroup(r.GetGroup(), since)...)
		}
		return changes
	case *nstancev1.GetInstanceStatusResponse:
		return c.setInstance(r.GetInstance(), since)
	case *nstancev1.AcknowledgeDrainedResponse:
		if request, ok := args.(*nstancev1.AcknowledgeDrainedRequest); ok {
			return c.endDrain(request.GetInstanceId())
		}
	}
	return nil
}
