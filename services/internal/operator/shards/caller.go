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

// callTimeout is for one call.
const callTimeout = 10 * time.Second

// caller calls a shard's leader, and has the mirror learn from the answers at once: who has just changed something sees
// it there.
type caller struct{ *shard }

var _ grpc.ClientConnInterface = caller{}

// Invoke implements grpc.ClientConnInterface.
func (c caller) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, err := c.connection()
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	since, began := c.mark(), c.now()
	err = conn.Invoke(limited, method, args, reply, opts...)
	if status.Code(err) == codes.Canceled && ctx.Err() == nil {
		err = status.Error(codes.Unavailable, "the connection to the shard was lost during the call")
	}
	c.set.metrics.called(c.id, path.Base(method), status.Code(err), c.now().Sub(began))
	if err == nil {
		c.set.tell(c.learn(since, args, reply)...)
	}
	return err
}

// NewStream implements grpc.ClientConnInterface.
func (c caller) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn, err := c.connection()
	if err != nil {
		return nil, err
	}
	return conn.NewStream(ctx, desc, method, opts...)
}

func (c caller) connection() (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return nil, status.Errorf(codes.Unavailable, "shard %s is unreachable: %s", c.id, reason(c.lost))
	}
	return c.conn, nil
}

// learn takes over what an answer says.
func (c caller) learn(since uint64, args, reply any) []Change {
	switch r := reply.(type) {
	case *nstancev1.UpsertGroupResponse:
		return c.setGroup(r.GetGroup(), since)
	case *nstancev1.DeleteGroupResponse:
		if request, ok := args.(*nstancev1.DeleteGroupRequest); ok && !r.GetRestoredStatic() {
			return c.deletingGroup(request.GetGroup(), since)
		}
	case *nstancev1.CreateInstanceResponse:
		return c.setInstance(r.GetInstance(), since)
	case *nstancev1.DeleteInstanceResponse:
		return c.setInstance(r.GetInstance(), since)
	case *nstancev1.GetInstanceStatusResponse:
		return c.setInstance(r.GetInstance(), since)
	case *nstancev1.AcknowledgeDrainedResponse:
		if request, ok := args.(*nstancev1.AcknowledgeDrainedRequest); ok {
			return c.endDrain(request.GetInstanceId())
		}
	}
	return nil
}
