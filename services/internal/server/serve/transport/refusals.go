package transport

import (
	"context"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// A [RefusalLog] writes at most refusalRate lines per second on average, and at most refusalBurst lines at one time.
const refusalRate, refusalBurst = 10, 100

// RefusalLog limits the log lines about refused calls, so that a hostile client cannot fill the log. A refusal is an
// error that the client caused, such as an invalid argument. The zero value is ready to use. It is safe for concurrent
// use.
type RefusalLog struct {
	once    sync.Once
	limiter *rate.Limiter
}

// Admits reports whether err is a refusal that may be logged now.
func (l *RefusalLog) Admits(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.NotFound, codes.AlreadyExists:
		return l.Allows()
	}
	return false
}

// Allows reports whether a refusal may be logged now.
func (l *RefusalLog) Allows() bool {
	l.once.Do(func() { l.limiter = rate.NewLimiter(refusalRate, refusalBurst) })
	return l.limiter.Allow()
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
