package peer

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
)

const (
	// helloTime is the time within which the other side must connect. It must send its hello within proofTime, because
	// the leader first reads a proof from the bucket, which may be slow.
	helloTime, proofTime = 5 * time.Second, 40 * time.Second
	// redialAfter is the pause after the first failed attempt to connect to the holder. The pause doubles up to
	// redialMost. redialMost is short, so that a follower reconnects soon after a partition.
	redialAfter, redialMost = 500 * time.Millisecond, 2 * time.Second
	// warnEvery is the time between two warnings about a missing link.
	warnEvery = time.Minute
	method    = "/nstance.election.v2.Peers/Link"
)

// stream is the common part of gRPC's client and server streams.
type stream interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

func receiveHello(s stream) (election.Peer, error) {
	var message any
	if err := s.RecvMsg(&message); err != nil {
		return election.Peer{}, err
	}
	h, ok := message.(hello)
	if !ok {
		return election.Peer{}, fmt.Errorf("%T before the hello", message)
	}
	return h.From, nil
}

// Server returns the gRPC server of the election port. It serves only servers of the same shard.
func (n *Network) Server(source *transport.Source) *grpc.Server {
	options := append(transport.ServerOptions(source, authority.RoleServer, n.options.Log),
		grpc.ForceServerCodec(codec{}), grpc.MaxRecvMsgSize(maxFrame),
		grpc.MaxSendMsgSize(maxFrame), grpc.WaitForHandlers(true))
	server := grpc.NewServer(options...)
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "nstance.election.v2.Peers", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "Link", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, s grpc.ServerStream) error { return n.accept(s) },
		}}}, n)
	return server
}

// accept serves one follower.
func (n *Network) accept(s grpc.ServerStream) error {
	identity, err := transport.PeerIdentity(s.Context())
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	if identity.Shard != n.options.Shard {
		return status.Errorf(codes.PermissionDenied, "this port is for servers of the shard %s, %s is one of %s",
			n.options.Shard, identity.Server, identity.Shard)
	}
	from, err := receiveHello(s)
	switch {
	case err != nil:
		return status.Error(codes.InvalidArgument, err.Error())
	case from.ID != identity.Server:
		return status.Errorf(codes.PermissionDenied, "the hello is of %s, the certificate of %s", from.ID,
			identity.Server)
	case from == n.options.Self:
		return status.Error(codes.InvalidArgument, "the peer is this process")
	}
	if err := n.checkProof(s.Context(), from); err != nil {
		return err
	}
	if err := s.SendMsg(hello{n.options.Self}); err != nil {
		return err
	}
	l := newLink(from, true)
	l.standby = standbyOf(s.Context(), from)
	n.add(l)
	defer n.remove(l)
	if n.options.Joined != nil {
		n.options.Joined()
	}
	ended := make(chan error, 1)
	go func() {
		ended <- n.listen(l, s) // ends with the stream, which ends when accept returns
		l.close()
	}()
	if err := l.pump(s.SendMsg); err != nil {
		return err
	}
	select {
	case err := <-ended:
		return status.Error(codes.Aborted, err.Error())
	default:
		return status.Error(codes.Aborted, "replaced by a newer connection")
	}
}

// listen receives messages until the stream ends or a message is invalid.
func (n *Network) listen(l *link, s stream) error {
	for {
		var message any
		if err := s.RecvMsg(&message); err != nil {
			return err
		}
		if !n.deliver(l, message) {
			return fmt.Errorf("%T names another process as its sender", message)
		}
	}
}

// Run keeps a link to the holder of the lock until ctx ends.
func (n *Network) Run(ctx context.Context) {
	failures := 0
	var since, warned time.Time // since when the link is missing, and the last warning; zero: it is not
	for ctx.Err() == nil {
		n.mu.Lock()
		holder, turned := n.holder, n.turned
		n.mu.Unlock()
		if holder.LeaderID == "" || holder.Addresses.Election == "" || n.options.Source() == nil {
			failures, since, warned = 0, time.Time{}, time.Time{}
			n.wait(ctx, turned, redialMost) // until the holder changes, or the CA may exist
			continue
		}
		began := time.Now()
		err := n.connect(ctx, holder, turned, func() {
			if !since.IsZero() {
				n.options.Log.Info("linked to the leader", "leader", holder.LeaderID, "after",
					time.Since(since).Round(time.Millisecond).String())
			}
			since, warned = time.Time{}, time.Time{}
		})
		if time.Since(began) > redialMost {
			failures = 0
		}
		select {
		case <-turned:
			failures, warned = 0, time.Time{}
			continue
		case <-ctx.Done():
			return
		default:
		}
		now := time.Now()
		since = cmp.Or(since, now)
		if warned.IsZero() || now.Sub(warned) >= warnEvery {
			warned = now
			n.options.Log.Warn("no link to the leader", "leader", holder.LeaderID, "addr", holder.Addresses.Election,
				"error", err, "since", since.UTC().Format(time.RFC3339))
		}
		failures++
		n.wait(ctx, turned, reconnect.Backoff(redialAfter, redialMost, failures))
	}
}

// wait sleeps for d or until the holder changes.
func (n *Network) wait(ctx context.Context, turned <-chan struct{}, d time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-turned:
			cancel()
		case <-ctx.Done():
		}
	}()
	_ = n.options.Sleep(ctx, d) // the reason for the end does not matter
}

// connect opens a link to the holder and keeps it until it ends or the holder changes. It calls the function "linked"
// when the link is open.
func (n *Network) connect(ctx context.Context, holder record.Lock, turned <-chan struct{}, linked func()) error {
	conn, err := grpc.NewClient("passthrough:///"+holder.Addresses.Election,
		grpc.WithTransportCredentials(transport.ClientCredentials(n.options.Source(), holder.LeaderID)),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}), grpc.MaxCallRecvMsgSize(maxFrame),
			grpc.MaxCallSendMsgSize(maxFrame)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{Timeout: helloTime}).DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	leader := election.Peer{ID: holder.LeaderID, Incarnation: holder.Incarnation}
	if err := n.prove(ctx, leader); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slow := time.AfterFunc(helloTime, func() { cancel(errors.New("it does not answer")) })
	defer slow.Stop()
	s, err := conn.NewStream(n.tellConfig(ctx), &grpc.StreamDesc{StreamName: "Link", ServerStreams: true,
		ClientStreams: true}, method)
	if err != nil {
		return err
	}
	if err := s.SendMsg(hello{n.options.Self}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if n.provedTo != leader {
		slow.Reset(proofTime)
	}
	from, err := receiveHello(s)
	if err != nil {
		return err
	}
	if from != leader {
		return fmt.Errorf("at its address is the process %s, not %s", from.Incarnation, leader.Incarnation)
	}
	slow.Stop()
	l := newLink(from, false)
	n.add(l)
	defer n.remove(l)
	linked()
	if n.provedTo != leader {
		n.provedTo = leader
		go n.deleteProof(ctx)
	}
	go func() {
		select {
		case <-turned: // the holder changed: queued messages are still sent
			l.close()
		case <-ctx.Done():
			l.close()
		}
	}()
	ended := make(chan error, 1)
	go func() {
		ended <- n.listen(l, s)
		l.close()
	}()
	if err := l.pump(s.SendMsg); err != nil {
		return err
	}
	_ = s.CloseSend()
	last := time.AfterFunc(flushTime, func() { cancel(nil) })
	defer last.Stop()
	return <-ended // the server closes its side in response
}

const (
	// maxFrame is the maximum size of a frame in bytes. It suffices for a lock in which every text has its maximum
	// length and every byte is escaped.
	maxFrame = 64 << 10
	// maxName is the maximum length in bytes of a server's ID, of its incarnation, and of the token of the lock. The
	// same limit applies in the lock.
	maxName = 512
	// maxLength is the maximum duration of a promise that a heartbeat may ask for.
	maxLength = time.Minute
)

// hello is the first message in either direction. The sender's certificate also contains its ID.
type hello struct{ From election.Peer }

// frame is one message as JSON. Exactly one field is set.
type frame struct {
	Hello     *hello             `json:"hello,omitempty"`
	Heartbeat *heartbeat         `json:"heartbeat,omitempty"`
	Promise   *election.Promise  `json:"promise,omitempty"`
	Handover  *election.Handover `json:"handover,omitempty"`
	TookOver  *election.TookOver `json:"took_over,omitempty"`
	Restart   *restart           `json:"restart,omitempty"`
	Refusal   *refusal           `json:"refusal,omitempty"`
}

// heartbeat is an election.Heartbeat as JSON. It contains the lock in the format of the store, so that the receiver can
// decode it like a lock that it read from the store.
type heartbeat struct {
	election.Heartbeat
	Lock json.RawMessage
}

// codec is the gRPC codec of the election port: it encodes and decodes a hello, an election.Message, a restart or a
// refusal.
type codec struct{}

func (codec) Name() string { return "nstance-peer" }

func (codec) Marshal(message any) ([]byte, error) {
	var f frame
	switch m := message.(type) {
	case hello:
		f.Hello = &m
	case election.Heartbeat:
		lock, err := record.EncodeLock(m.Lock)
		if err != nil {
			return nil, err
		}
		f.Heartbeat = &heartbeat{m, lock}
	case election.Promise:
		f.Promise = &m
	case election.Handover:
		f.Handover = &m
	case election.TookOver:
		f.TookOver = &m
	case restart:
		f.Restart = &m
	case refusal:
		f.Refusal = &m
	default:
		return nil, fmt.Errorf("%T is no message", message)
	}
	return json.Marshal(f)
}

// Unmarshal stores the message in *into. into must be an *any.
func (codec) Unmarshal(data []byte, into any) (err error) {
	var f frame
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields() // a message of a newer version may mean something else without them
	if err := decoder.Decode(&f); err != nil {
		return fmt.Errorf("decode message of a server: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("decode message of a server: more than one JSON value")
	}
	var message any
	switch {
	case f.Hello != nil:
		message, err = *f.Hello, validate(f.Hello.From)
	case f.Heartbeat != nil:
		m := f.Heartbeat.Heartbeat
		m.Lock, err = record.DecodeLock(f.Heartbeat.Lock)
		switch {
		case err != nil:
		case m.Length <= 0 || m.Length > maxLength:
			err = fmt.Errorf("a promise of %s", m.Length)
		case len(m.Token) > maxName:
			err = fmt.Errorf("the token of the lock has %d bytes, want at most %d", len(m.Token), maxName)
		default:
			err = validate(m.Leader, m.Standby)
		}
		message = m
	case f.Promise != nil:
		message, err = *f.Promise, validate(f.Promise.Leader, f.Promise.Standby)
	case f.Handover != nil:
		message, err = *f.Handover, validate(f.Handover.Leader, f.Handover.Standby)
	case f.TookOver != nil:
		message, err = *f.TookOver, validate(f.TookOver.Leader, f.TookOver.Standby)
	case f.Restart != nil:
		message, err = *f.Restart, f.Restart.validate()
	case f.Refusal != nil:
		message, err = *f.Refusal, f.Refusal.validate()
	default:
		err = errors.New("it has no known field")
	}
	if err != nil {
		return fmt.Errorf("decode message of a server: %w", err)
	}
	*into.(*any) = message
	return nil
}

// validate checks that the names of servers fit into a lock.
func validate(servers ...election.Peer) error {
	for _, server := range servers {
		for _, part := range []string{server.ID, server.Incarnation} {
			if part == "" || len(part) > maxName {
				return fmt.Errorf("the name of a server has a part of %d bytes, want 1 to %d", len(part), maxName)
			}
		}
	}
	return nil
}
