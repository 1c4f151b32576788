package agent

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/agent/identity"
)

const (
	// The agent detects within 15 s that its server died or was suspended. gRPC allows no shorter keepaliveTime. A
	// server that answers no ping for keepaliveTimeout cannot renew its lease either.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second

	// Small buffers suffice: an agent sends about a hundred bytes a minute. A load generator runs thousands of agents.
	bufferSize = 4 << 10

	// maxKeyRequests is how many messages with key requests may wait while the agent makes and submits keys. If more
	// arrive, the agent reads no files until it has dealt with one of the waiting messages.
	maxKeyRequests = 16
)

// errRenewed ends a session so that the next session uses the new certificate. A server closes a connection when the
// connection's client certificate expires.
var errRenewed = errors.New("the certificate was renewed")

// errWoken ends a session because the machine was asleep. The server may have closed the connection meanwhile.
var errWoken = errors.New("the machine was asleep")

// connect prepares a connection to host:port. The connection is established at first use, with TLS 1.3. The agent then
// verifies the server's chain, host name, and role, and presents its certificate if it has one. timeout bounds the time
// until the end of the TLS handshake.
func (c *Client) connect(addr string, timeout time.Duration) (*grpc.ClientConn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("server address: %w", err)
	}
	roots, err := c.identity.Roots()
	if err != nil {
		return nil, err
	}
	security := &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    roots,
		ServerName: host,
		// The TLS library calls this function at every handshake, so a renewed certificate needs no new configuration.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if cert := c.cert.Load(); cert != nil {
				return &cert.TLS, nil
			}
			return &tls.Certificate{}, nil
		},
		VerifyConnection: func(state tls.ConnectionState) error {
			cluster := ""
			if cert := c.cert.Load(); cert != nil {
				cluster = cert.Cluster
			}
			return identity.VerifyServer(state.PeerCertificates[0], cluster)
		},
	}
	return grpc.NewClient("passthrough:///"+addr, // the dialer resolves names at every attempt
		grpc.WithTransportCredentials(credentials.NewTLS(security)),
		grpc.WithContextDialer(c.Dial),
		grpc.WithNoProxy(),
		grpc.WithUserAgent("nstance-agent/"+c.Version),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		// A failed connection ends its session, so gRPC never reconnects. The connect timeout is the larger of
		// MinConnectTimeout and the backoff delay, so both are set.
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: timeout,
			Backoff: backoff.Config{BaseDelay: timeout, MaxDelay: timeout}}),
		grpc.WithReadBufferSize(bufferSize),
		grpc.WithWriteBufferSize(bufferSize),
		grpc.WithDisableRetry(), // the client retries itself; gRPC's retry buffers cost memory per stream
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(c.named(ctx), method, req, reply, conn, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn,
			method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return stream(c.named(ctx), desc, conn, method, opts...)
		}),
	)
}

// named adds this process to the headers of a call.
func (c *Client) named(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, processHeader, c.process)
}

// session connects to a server, opens the agent's streams, and returns when one of the streams ends. accepted reports
// whether the server accepted the agent.
func (c *Client) session(ctx context.Context, addr string, timeout time.Duration) (accepted bool, err error) {
	select {
	case <-c.woken: // before this session
	default:
	}
	conn, err := c.connect(addr, timeout)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	api := nstancev1.NewAgentServiceClient(conn)
	if c.cert.Load().Expired(time.Now()) {
		// An agent with an expired certificate may only call RenewCertificate, so renew the certificate first.
		if err := c.renew(ctx, api); err != nil {
			return false, fmt.Errorf("renew the expired certificate: %w", err)
		}
		if c.cert.Load().Expired(time.Now()) {
			return false, errors.New("the renewed certificate has expired too: a clock is wrong")
		}
		return false, errRenewed
	}
	if c.identity.Renewing() {
		// The server's answer to the last renewal may have been lost. In that case, the server may accept only the key
		// that the agent sent for that renewal, so repeat the renewal.
		if err := c.renew(ctx, api); err == nil {
			return false, errRenewed
		} else if ctx.Err() == nil {
			c.Log.Warn("The interrupted renewal was not completed; trying again", "error", err)
		}
	}
	keys, oldServer := make(chan []*nstancev1.KeyRequest, maxKeyRequests), make(chan struct{})
	reports := &reporter{Client: c, api: api, onAccept: func() {
		accepted = true
		c.counts.sessions.Add(1)
		c.setHealth(nil)
		c.Log.Info("Connected", "address", addr)
	}, onOldServer: sync.OnceFunc(func() { close(oldServer) })}
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return c.makeKeys(inner, api, keys) })
	group.Go(func() error { return c.receiveFiles(inner, api, keys) })
	group.Go(func() error {
		select {
		case <-inner.Done():
			return inner.Err()
		case <-oldServer:
			return c.receiveKeyRequests(inner, api, keys)
		}
	})
	group.Go(func() error {
		select {
		case <-inner.Done():
			return inner.Err()
		case <-c.woken:
			return errWoken
		}
	})
	group.Go(func() error { return c.keepRenewed(inner, api) })
	group.Go(func() error { return reports.run(inner) })
	err = group.Wait()
	return accepted, err
}

// ended returns the error of a stream that the server ended, even if the server sent no error.
func ended(stream string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: the server ended the stream", stream)
	}
	return fmt.Errorf("%s: %w", stream, err)
}

// receiveKeyRequests receives key requests from a server that does not send them on the stream of files. It passes them
// to makeKeys.
func (c *Client) receiveKeyRequests(ctx context.Context, api nstancev1.AgentServiceClient,
	keys chan<- []*nstancev1.KeyRequest) error {
	stream, err := api.KeyGenRequests(ctx, &nstancev1.KeyGenRequestsRequest{InstanceId: c.ID.String()})
	if err != nil {
		return ended("key requests", err)
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return ended("key requests", err)
		}
		if err := passOn(ctx, keys, message.GetKeys()); err != nil {
			return err
		}
	}
}

func passOn(ctx context.Context, keys chan<- []*nstancev1.KeyRequest, requested []*nstancev1.KeyRequest) error {
	select {
	case keys <- requested:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// makeKeys generates the keys that the server requests and submits their public keys.
func (c *Client) makeKeys(ctx context.Context, api nstancev1.AgentServiceClient,
	requests <-chan []*nstancev1.KeyRequest) error {
	for {
		var requested []*nstancev1.KeyRequest
		select {
		case requested = <-requests:
		case <-ctx.Done():
			return ctx.Err()
		}
		var keys []*nstancev1.PublicKey
		for _, request := range requested {
			pkix, err := c.keys.Ensure(request.GetName(), request.GetAlgorithm())
			if err != nil {
				c.Log.Error("A key that the server asks for cannot be made", "key", request.GetName(), "error", err)
				continue
			}
			keys = append(keys, &nstancev1.PublicKey{Name: request.GetName(), Pkix: pkix})
		}
		c.update(func(s *standing) { s.changed = true })
		if len(keys) == 0 {
			continue
		}
		if err := c.submit(ctx, api, keys); err != nil {
			return err
		}
	}
}

// submit submits public keys and retries temporary errors. If the server refuses the keys, submit only logs the
// refusal, because the server requests missing keys again.
func (c *Client) submit(ctx context.Context, api nstancev1.AgentServiceClient, keys []*nstancev1.PublicKey) error {
	for delays := newDelays(); ; {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := api.SubmitPublicKeys(call, &nstancev1.SubmitPublicKeysRequest{InstanceId: c.ID.String(), Keys: keys})
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case forGood(err):
			c.Log.Error("The server refused public keys", "error", err)
			return nil
		}
		c.Log.Warn("Public keys were not handed in; trying again", "error", err)
		if err := c.pause(ctx, delays.NextBackOff(), nil); err != nil {
			return err
		}
	}
}

// receiveFiles stores the batches of files that the server sends. The server may also send health checks, numbers to
// read, key requests, the role and the drain on the stream. receiveFiles passes key requests to makeKeys. If the stream
// ends in the middle of a batch, the agent drops the batch.
func (c *Client) receiveFiles(ctx context.Context, api nstancev1.AgentServiceClient,
	keys chan<- []*nstancev1.KeyRequest) error {
	request := &nstancev1.ReceiveFilesRequest{InstanceId: c.ID.String(), WithKeyRequests: true,
		WithDrain: c.DrainHook != nil, WithRole: true}
	if c.checks != nil {
		request.WithHealthChecks, request.HealthChecksVersion = true, c.checks.Version()
	}
	if c.numbers != nil {
		request.WithVmNumbers, request.VmNumbers = true, c.numbers.IDs()
	}
	stream, err := api.ReceiveFiles(ctx, request)
	if err != nil {
		return ended("files", err)
	}
	batch := c.files.NewBatch()
	for {
		message, err := stream.Recv()
		if err != nil {
			return ended("files", err)
		}
		switch event := message.GetEvent().(type) {
		case *nstancev1.ReceiveFilesResponse_KeyRequests:
			if err := passOn(ctx, keys, event.KeyRequests.GetKeys()); err != nil {
				return err
			}
		case *nstancev1.ReceiveFilesResponse_HealthChecks:
			if c.checks != nil {
				c.checks.Set(event.HealthChecks.GetVersion(), event.HealthChecks.GetChecks())
				c.Log.Info("Health checks changed", "checks", len(event.HealthChecks.GetChecks()))
				c.update(func(s *standing) { s.changed = true })
			}
		case *nstancev1.ReceiveFilesResponse_VmNumbers:
			if c.numbers != nil {
				c.numbers.Set(event.VmNumbers.GetNumbers())
				c.Log.Info("Numbers to read changed", "numbers", len(event.VmNumbers.GetNumbers()))
			}
		case *nstancev1.ReceiveFilesResponse_Drain:
			if c.DrainHook != nil {
				c.askDrain(event.Drain)
			}
		case *nstancev1.ReceiveFilesResponse_Role:
			c.tell(event.Role.GetRole())
		case *nstancev1.ReceiveFilesResponse_File:
			batch.Add(event.File)
		case *nstancev1.ReceiveFilesResponse_Commit:
			changed, err := c.files.Apply(batch, event.Commit)
			batch = c.files.NewBatch()
			unwell := ""
			if err != nil {
				unwell = fmt.Sprintf("files cannot be stored: %v", err)
				c.Log.Error("A batch of files was not stored", "error", err)
			}
			c.update(func(s *standing) { s.changed, s.unwell = true, unwell })
			if len(changed) > 0 {
				c.Log.Info("Files changed", "files", changed)
				nudge(c.hooked)
			}
		}
	}
}

// keepRenewed renews the certificate after two thirds of its life, or earlier when the server asks for that. After the
// renewal it returns errRenewed, which ends the session. The next session presents the new certificate.
func (c *Client) keepRenewed(ctx context.Context, api nstancev1.AgentServiceClient) error {
	delays := newDelays()
	delays.InitialInterval *= 60 // a third of the certificate's life is left for retries
	delays.MaxInterval *= 60
	for {
		cert := c.cert.Load()
		// Agents may have started at the same time. The random delay spreads their renewals.
		due := cert.RenewAt().Add(rand.N(cert.Life()/50 + 1))
		for time.Until(due) > 0 {
			// Timers stop while a machine sleeps, but the wall clock does not. So compare the due time with the wall
			// clock at least every ten minutes.
			timer := time.NewTimer(min(time.Until(due), 10*time.Minute))
			select {
			case <-ctx.Done():
			case within := <-c.early:
				due = time.Now().Round(0).Add(min(within, time.Until(due))) // Round(0): on the wall clock
			case <-timer.C:
			}
			timer.Stop()
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		err := c.renew(ctx, api)
		if err == nil {
			// Near the end of a CA's life, certificates are short-lived. This pause limits the rate of renewals.
			if err := c.pause(ctx, time.Second, nil); err != nil {
				return err
			}
			return errRenewed
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		delay := min(delays.NextBackOff(), max(time.Until(cert.Leaf.NotAfter)/4, time.Second))
		c.Log.Error("The certificate was not renewed; trying again", "error", err, "expires", cert.Leaf.NotAfter,
			"duration", delay)
		if err := c.pause(ctx, delay, nil); err != nil {
			return err
		}
	}
}

// maxRenewWithin is the longest time over which a server may spread early renewals.
const maxRenewWithin = time.Hour

// renewEarly makes keepRenewed renew the certificate at a random time within the given duration.
func (c *Client) renewEarly(within time.Duration) {
	select {
	case c.early <- rand.N(min(max(within, 0), maxRenewWithin) + 1):
	default: // keepRenewed has not taken the last request yet
	}
}

// renew gets and stores a new certificate for a new key.
func (c *Client) renew(ctx context.Context, api nstancev1.AgentServiceClient) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	key, err := c.identity.Key()
	if err != nil {
		return err
	}
	next, err := c.identity.NextKey()
	if err != nil {
		return err
	}
	answer, err := api.RenewCertificate(ctx, &nstancev1.AgentServiceRenewCertificateRequest{InstanceId: c.ID.String(),
		PublicKey: next.Public().(ed25519.PublicKey)})
	if status.Code(err) == codes.AlreadyExists {
		// The next key came with a copied disk. The next attempt makes another one.
		return errors.Join(err, c.identity.DiscardNextKey())
	}
	if err != nil {
		return err
	}
	cert, err := c.identity.AcceptRenewal(key, next, answer.GetCertificate(), answer.GetCaBundle())
	if cert == nil {
		return err
	}
	c.cert.Store(cert)
	c.Log.Info("Certificate renewed", "expires", cert.Leaf.NotAfter)
	if err != nil {
		c.Log.Warn("Something of the registration is left over", "error", err)
	}
	return nil
}
