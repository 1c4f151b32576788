package operatorapi_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// reading returns a function that decodes the bytes of a request and passes the request to the function "call". If the
// bytes are not a message, the function returns InvalidArgument, because gRPC rejects them too.
func reading[Q any, PQ interface {
	*Q
	proto.Message
}, A any](call func(context.Context, PQ, ...grpc.CallOption) (A, error),
) func(context.Context, []byte) error {
	return func(ctx context.Context, raw []byte) error {
		req := PQ(new(Q))
		if proto.Unmarshal(raw, req) != nil {
			return status.Error(codes.InvalidArgument, "no message")
		}
		_, err := call(ctx, req)
		return err
	}
}

// FuzzRequests checks that every request gets an answer or an error with a code that describes the problem.
func FuzzRequests(f *testing.F) {
	w := newTestShard(f)
	// FuzzPatch covers UpsertGroup.
	all := []func(ctx context.Context, raw []byte) error{
		reading(w.ListGroups), reading(w.DeleteGroup), reading(w.ListInstances), reading(w.GetInstanceStatus),
		reading(w.GetInstanceConsole), reading(w.GetScalingHistory),
		reading(w.CreateInstance), reading(w.DeleteInstance),
		reading(w.AcknowledgeDrained), reading(w.RenewCertificate), reading(w.GetInstanceType),
	}
	for kind, seed := range []proto.Message{
		&nstancev1.ListGroupsRequest{}, &nstancev1.DeleteGroupRequest{Group: "fleet"},
		&nstancev1.ListInstancesRequest{Group: "static"},
		&nstancev1.GetInstanceStatusRequest{InstanceId: w.id.String()},
		&nstancev1.CreateInstanceRequest{Group: "nowhere", Vars: map[string]string{"a": "b"}, InstanceType: "x"},
		&nstancev1.DeleteInstanceRequest{InstanceId: "knd", Reason: "because"},
		&nstancev1.AcknowledgeDrainedRequest{InstanceId: w.id.String()},
		&nstancev1.OperatorServiceRenewCertificateRequest{},
		&nstancev1.GetInstanceTypeRequest{InstanceType: "small"},
	} {
		raw, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(kind), raw)
	}
	f.Fuzz(func(t *testing.T, kind byte, raw []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		switch err := all[int(kind)%len(all)](ctx, raw); status.Code(err) {
		case codes.Internal, codes.Unknown, codes.Unavailable, codes.DeadlineExceeded:
			t.Errorf("%d %x: %v", kind, raw, err)
		}
	})
}
