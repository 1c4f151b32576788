package transport

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Lines of a [RefusalLog] per second, and how many it may write together.
const refusalRate, refusalBurst = 10, 100

// RefusalLog logs calls that failed because of what the client sent or is. It drops lines over a limit, because a
// hostile client must not fill the log. The zero value is ready to use. It is safe for concurrent use.
type RefusalLog struct {
	once    sync.Once
	limiter *rate.Limiter
}

// Log writes a warning with the client's address and the error, if the error is a refusal.
func (l *RefusalLog) Log(ctx context.Context, log *slog.Logger, message string, err error, attrs ...any) {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.NotFound:
	default:
		return
	}
	l.once.Do(func() { l.limiter = rate.NewLimiter(refusalRate, refusalBurst) })
	if l.limiter.Allow() {
		log.Warn(message, append(attrs, "source", PeerAddress(ctx).String(), "error", status.Convert(err).Message())...)
	}
}

// PeerAddress returns the address that a call came from. It is invalid if the call did not come over a network.
func PeerAddress(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	from, err := netip.ParseAddrPort(p.Addr.String())
	if err != nil {
		return netip.Addr{}
	}
	return from.Addr().Unmap().WithZone("")
}
