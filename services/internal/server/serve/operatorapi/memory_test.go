package operatorapi_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// TestMemoryOfSlowFollowers checks that one operator that opens 512 streams and does not read them occupies at most 64
// MiB, although each event is as large as an event can be. The clients are in the same process, so the memory of both
// sides counts. Without the limit of streams, it would be eight times as much.
func TestMemoryOfSlowFollowers(t *testing.T) {
	const connections, streams, limit = 16, 32, 64 << 20
	w := newTestShard(t)
	for n := range 400 {
		w.api.Journal.Record(record.Event{Kind: record.EventInstanceHealthy, Tenant: "prod",
			Message: strings.Repeat("x", 4<<10), Actor: fmt.Sprint(n)})
	}
	addr := w.Serve(t, authority.RoleOperator, func(s *grpc.Server) {
		w.service.Register(s)
	})
	cert := w.operator(t, "prod", w.NewID(t, "opr"), transporttest.NewKey(t))
	occupied := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // a pool keeps free buffers until the second collection
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := occupied()
	var refused atomic.Int32
	for n := range connections {
		// Fixed windows: gRPC enlarges others up to 16 MiB for what its estimate of the bandwidth happens to be.
		client := nstancev1.NewOperatorServiceClient(w.Dial(t, addr, cert, grpc.WithStaticStreamWindowSize(64<<10),
			grpc.WithStaticConnWindowSize(64<<10)))
		for range streams {
			stream, err := client.FollowEvents(t.Context(), &nstancev1.FollowEventsRequest{
				Filter: &nstancev1.EventFilter{}})
			if err != nil {
				t.Fatal(err)
			}
			if n < 2 { // these are the streams that are served
				if _, err := stream.Header(); err != nil {
					t.Fatal(err)
				}
			}
			go func() {
				if _, err := stream.Recv(); status.Code(err) == codes.ResourceExhausted {
					refused.Add(1)
				}
			}()
		}
		if n >= 2 { // the streams of the first two fill the window of their connection
			if _, err := client.ListGroups(t.Context(), &nstancev1.ListGroupsRequest{}); err != nil {
				t.Errorf("other calls fail at the limit: %v", err)
			}
		}
	}
	const want = connections*streams - 64
	for end := time.Now().Add(20 * time.Second); refused.Load() < want && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Second) // until the buffers are full
	after := occupied()
	t.Logf("%d streams, %d refused, occupy %d MiB", connections*streams, refused.Load(), (after-before)>>20)
	if after-before > limit || refused.Load() != want {
		t.Errorf("%d streams, %d of them refused, occupy %d MiB; want %d refused and at most %d MiB",
			connections*streams, refused.Load(), (after-before)>>20, want, limit>>20)
	}
}
