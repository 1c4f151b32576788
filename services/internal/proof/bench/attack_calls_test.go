package bench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// linkMethod is the method of the election port.
const linkMethod = "/nstance.election.v2.Peers/Link"

// nonces returns attacks that try to register with invalid nonces.
func (a *attacker) nonces() (list []attack) {
	agent := func(nonce string) func() string { return func() string { return a.register(nonce) } }
	add := func(kind string, run func() string) {
		list = append(list, attack{kind, registrationPort, run, 20 * time.Millisecond})
	}
	for kind, nonce := range a.Nonces {
		add("nonce: "+kind, agent(nonce))
	}
	spent := a.Nonces["replayed"]
	parts := strings.Split(spent, ".")
	flip := func(text string, at int) string { // replaces one character by another of the alphabet
		other := byte('A')
		if text[at] == other {
			other = 'B'
		}
		return text[:at] + string(other) + text[at+1:]
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		panic(err)
	}
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	others := part(strings.ReplaceAll(string(claims), a.ID, a.Other))
	add("nonce: forged signature", agent(parts[0]+"."+parts[1]+"."+flip(parts[2], 10)))
	add("nonce: tampered", agent(parts[0]+"."+others+"."+parts[2]))
	add("nonce: alg none", agent(part(`{"alg":"none","typ":"JWT"}`)+"."+others+"."))
	add("nonce: alg HS256", agent(part(`{"alg":"HS256","typ":"JWT"}`)+"."+others+"."+parts[2]))
	add("nonce: garbage", agent(strings.Repeat("a.b", 1000)))
	add("nonce: of an agent for an operator", func() string {
		return a.call(registrationPort, noCertificate, func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := nstancev1.NewRegistrationServiceClient(conn).RegisterOperator(ctx,
				&nstancev1.RegisterOperatorRequest{Nonce: spent, PublicKey: newKey()})
			return err
		})
	})
	// Register as fast as possible over one connection, with valid signatures. The separate source address keeps this
	// flood from using up the rate limit of the other attacks.
	add("nonce: flood of consumed ones", func() (outcome string) {
		return a.call(registrationPort, noCertificate, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			for end := time.Now().Add(time.Second); time.Now().Before(end) && ctx.Err() == nil; {
				_, err = nstancev1.NewRegistrationServiceClient(conn).RegisterAgent(ctx,
					&nstancev1.RegisterAgentRequest{Nonce: spent, PublicKey: newKey()})
			}
			return err
		}, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return connectFrom(ctx, 67, addr)
		}))
	})
	return list
}

func newKey() []byte {
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	return public
}

func (a *attacker) register(nonce string) string {
	return a.call(registrationPort, noCertificate, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := nstancev1.NewRegistrationServiceClient(conn).RegisterAgent(ctx,
			&nstancev1.RegisterAgentRequest{Nonce: nonce, PublicKey: newKey()})
		return err
	})
}

// noise is a codec that writes invalid messages of a given size.
type noise struct{ size int }

func (noise) Name() string { return "proto" }
func (n noise) Marshal(any) (mem.BufferSlice, error) {
	raw := make([]byte, n.size)
	_, _ = rand.Read(raw[:min(len(raw), 512)])
	raw[0] = 0xff // no field has this tag
	return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
}
func (noise) Unmarshal(mem.BufferSlice, any) error { return nil }

var _ encoding.CodecV2 = noise{}

// methods maps each port to one of its methods, and to the name of the certificate with which the attacker calls the
// method.
var methods = map[string]struct{ name, cert string }{
	registrationPort: {nstancev1.RegistrationService_RegisterAgent_FullMethodName, noCertificate},
	agentPort:        {nstancev1.AgentService_SubmitPublicKeys_FullMethodName, "caller"},
	operatorPort:     {nstancev1.OperatorService_ListInstances_FullMethodName, "operator"},
	electionPort:     {linkMethod, "agent"}, // only servers have a valid certificate for it
}

// messages returns attacks that send messages which are too large or malformed. If the certificate does not permit the
// call, the server refuses the call for that reason, and not because of the message.
func (a *attacker) messages() (list []attack) {
	for kind, size := range map[string]int{"malformed": 512, "oversized": 5 << 20} {
		for port, method := range methods {
			list = append(list, attack{kind, port, func() string {
				return a.call(port, method.cert, func(ctx context.Context, conn *grpc.ClientConn) error {
					return conn.Invoke(ctx, method.name, &nstancev1.RegisterAgentRequest{},
						&nstancev1.RegisterAgentResponse{})
				}, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(noise{size})))
			}, 20 * time.Millisecond})
		}
	}
	report := func(kind string, r *nstancev1.ReportHealthRequest) {
		list = append(list, attack{kind, agentPort, func() string {
			return a.call(agentPort, "reporter", func(ctx context.Context, conn *grpc.ClientConn) error {
				stream, err := nstancev1.NewAgentServiceClient(conn).ReportHealth(ctx)
				if err != nil {
					return err
				}
				_ = stream.Send(r) // the answer reports errors
				_, err = stream.CloseAndRecv()
				return err
			})
		}, 20 * time.Millisecond})
	}
	report("another's name", &nstancev1.ReportHealthRequest{InstanceId: a.Other, Sequence: 1, Healthy: true})
	report("oversized report", &nstancev1.ReportHealthRequest{InstanceId: a.Reporter, Sequence: 1, Healthy: true,
		Message: string(make([]byte, 5<<20))})
	report("report of nonsense", &nstancev1.ReportHealthRequest{InstanceId: a.Reporter, Sequence: 1, Healthy: true,
		RuntimeHash: strings.Repeat("x", 5000)})
	return list
}

// identities returns attacks that call a method with a certificate that does not permit the call, or that is no longer
// valid.
func (a *attacker) identities() (list []attack) {
	calls := map[string]func(context.Context, *grpc.ClientConn) error{
		agentPort: func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := nstancev1.NewAgentServiceClient(conn).SubmitPublicKeys(ctx,
				&nstancev1.SubmitPublicKeysRequest{InstanceId: a.ID})
			return err
		},
		operatorPort: func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := nstancev1.NewOperatorServiceClient(conn).ListInstances(ctx, &nstancev1.ListInstancesRequest{})
			return err
		},
		electionPort: func(ctx context.Context, conn *grpc.ClientConn) error {
			return conn.Invoke(ctx, linkMethod, &nstancev1.ListInstancesRequest{}, &nstancev1.ListInstancesResponse{})
		},
	}
	for port, call := range calls {
		for cert := range a.certs {
			switch {
			case cert == "reporter" || cert == "caller", port == agentPort && cert == "agent", port == operatorPort &&
				cert == "operator":
				continue // a call that is permitted
			}
			list = append(list, attack{"certificate", port + " " + cert, func() string {
				return a.call(port, cert, call)
			}, 50 * time.Millisecond})
		}
	}
	return append(list, attack{"another tenant's instance", operatorPort, func() string {
		return a.call(operatorPort, "operator", func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := nstancev1.NewOperatorServiceClient(conn).DeleteInstance(ctx,
				&nstancev1.DeleteInstanceRequest{InstanceId: a.Other})
			return err
		})
	}, 50 * time.Millisecond})
}
