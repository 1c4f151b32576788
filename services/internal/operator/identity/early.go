package identity

import (
	"context"

	"google.golang.org/grpc/stats"
)

// renewHeader is the response header with which a server asks for an early renewal.
const renewHeader = "nstance-renew-certificate"

// renewalRequests looks in the response headers of servers for a request to renew the certificate early. It implements
// stats.Handler.
type renewalRequests struct{ *Keeper }

// RenewalRequests returns a handler for connections to servers. If a server asks for an early renewal, [Keeper.Run]
// renews the certificate within a minute.
func (k *Keeper) RenewalRequests() stats.Handler { return renewalRequests{k} }

// TagRPC implements stats.Handler.
func (renewalRequests) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (r renewalRequests) HandleRPC(_ context.Context, event stats.RPCStats) {
	if header, ok := event.(*stats.InHeader); ok && len(header.Header.Get(renewHeader)) > 0 {
		r.renewEarly.Store(true)
	}
}

// TagConn implements stats.Handler.
func (renewalRequests) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (renewalRequests) HandleConn(context.Context, stats.ConnStats) {}
