package agent

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/internal/agent/identity"
)

const (
	callTimeout = 15 * time.Second
	// attestTimeout is the time limit for getting a proof of the VM, so that a metadata service that does not answer
	// leaves enough time for the registration.
	attestTimeout = 5 * time.Second
	// renonce is the interval at which an agent looks for a new nonce after the server has refused the old one.
	renonce = 30 * time.Second
	// refusedFirst and refusedMost limit the time after which an agent sends a refused nonce again. The cause of the
	// refusal may be a wrong clock or outdated data of the server.
	refusedFirst, refusedMost = time.Minute, 10 * time.Minute
)

// errRefused means that the server gives the same answer to the nonce as long as its cause lasts.
var errRefused = errors.New("refused")

// enroll returns nil when the agent has a certificate. It returns ctx's error when ctx ends first.
func (c *Client) enroll(ctx context.Context) error {
	servers := addresses{configured: c.RegistrationAddrs}
	delays := newDelays()
	lastError, refusals := "", 0
	for {
		cert, nonce, err := c.tryEnroll(ctx, &servers)
		if cert != nil {
			if err != nil { // the nonce could not be removed; the next start tries again
				c.Log.Warn("Something of the registration is left over", "error", err)
			}
			c.cert.Store(cert)
			c.setOffline(errors.New("starting"))
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.setHealth(fmt.Errorf("not registered: %w", err))
		if servers.hint(err, (*nstancev1.NotLeader).GetRegistrationAddr) {
			delays.Reset()
		}
		switch {
		case errors.Is(err, errRefused):
			patience := reconnect.Backoff(refusedFirst, refusedMost, refusals+1) // refusals counts those before
			if err.Error() != lastError {
				lastError = err.Error()
				c.Log.Error("The server refused the registration; trying again later, or with another nonce", "error",
					err, "duration", patience)
			}
			replaced, err := c.awaitNonce(ctx, nonce, patience)
			if err != nil {
				return err
			}
			if refusals++; replaced {
				refusals = 0
			}
			delays.Reset()
			continue
		case err.Error() != lastError: // log at warning level only if the error is a new one
			lastError = err.Error()
			c.Log.Warn("Not registered yet; trying again", "error", err)
		default:
			c.Log.Debug("Not registered yet; trying again", "error", err)
		}
		if err := c.pause(ctx, delays.NextBackOff(), nil); err != nil {
			return err
		}
	}
}

// tryEnroll returns the stored certificate, or registers the instance to get a new one. An expired certificate is
// returned only if there is no nonce, because the server may still renew it. If tryEnroll returns both a certificate
// and an error, the agent can use the certificate.
func (c *Client) tryEnroll(ctx context.Context, servers *addresses) (*identity.Certificate, identity.Nonce, error) {
	foreign, err := c.identity.Claim(func() error { return errors.Join(c.keys.Clear(), c.files.Forget()) })
	if err != nil {
		return nil, "", err
	}
	if foreign {
		c.Log.Warn("The identity on this disk belongs to another instance; it was removed")
	}
	key, err := c.identity.Key()
	if err != nil {
		return nil, "", err
	}
	cert, stored := c.identity.Certificate(key)
	if cert != nil && !cert.Expired(time.Now()) {
		return cert, "", c.identity.Spend()
	}
	nonce, err := c.identity.Nonce()
	if err != nil {
		if cert != nil { // expired: the server may still renew it
			return cert, "", nil
		}
		return nil, "", errors.Join(stored, err)
	}
	cert, err = c.register(ctx, servers, key, nonce)
	if cert != nil {
		c.Log.Info("Registered", "instance", c.ID.String(), "expires", cert.Leaf.NotAfter)
	}
	return cert, nonce, err
}

func (c *Client) register(ctx context.Context, servers *addresses, key ed25519.PrivateKey,
	nonce identity.Nonce) (*identity.Certificate, error) {
	proof, unproven := c.prove(ctx)
	conn, err := c.connect(servers.next())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	facts := c.Machine.Facts()
	answer, err := nstancev1.NewRegistrationServiceClient(conn).RegisterAgent(ctx, &nstancev1.RegisterAgentRequest{
		Nonce:     string(nonce),
		PublicKey: key.Public().(ed25519.PublicKey),
		Ipv4:      facts.IPv4, Ipv6: facts.IPv6, Hostname: facts.Hostname,
		Attestation: proof, InstanceId: c.ID.String(),
	})
	if err != nil {
		if unproven != nil {
			err = fmt.Errorf("%w (without a proof of this VM: %w)", err, unproven)
		}
		if status.Code(err) == codes.AlreadyExists {
			// The key came with a copied disk. The nonce is not consumed, so a new key can use it.
			return nil, errors.Join(err, c.identity.DiscardKeys(), c.keys.Clear(), c.files.Forget())
		}
		if forGood(err) {
			return nil, fmt.Errorf("%w: %w", errRefused, err)
		}
		return nil, err
	}
	return c.identity.Accept(key, answer.GetCertificate(), answer.GetCaBundle())
}

// prove returns a proof that the agent runs on this VM. A server that requires a proof asks an agent without one to try
// again, so the agent registers also if it gets no proof.
func (c *Client) prove(ctx context.Context) ([]byte, error) {
	if c.Attest == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, attestTimeout)
	defer cancel()
	proof, err := c.Attest(ctx)
	if err != nil {
		return nil, err
	}
	return proof, nil
}

// forGood reports whether the server gives the same answer to every retry while the cause of its answer lasts.
func forGood(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.FailedPrecondition, codes.NotFound,
		codes.AlreadyExists:
		return true
	default:
		return false
	}
}

// awaitNonce waits until the nonce in the identity folder is no longer the refused one, but at most for the time
// patience.
func (c *Client) awaitNonce(ctx context.Context, refused identity.Nonce, patience time.Duration) (replaced bool,
	err error) {
	for waited := time.Duration(0); waited < patience; waited += renonce {
		if err := c.pause(ctx, renonce, nil); err != nil {
			return false, err
		}
		if nonce, err := c.identity.Nonce(); err == nil && nonce != refused {
			return true, nil
		}
	}
	return false, nil
}
