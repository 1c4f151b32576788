package agentapi_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/journal/localdb"
)

// FuzzSubmitPublicKeys checks that the server accepts keys only if all of them are valid and were requested. Otherwise
// the server must reject the message with a suitable status code, and store none of its keys.
func FuzzSubmitPublicKeys(f *testing.F) {
	w := newTestLeader(f)
	c := w.agent(f)
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	pkix, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		f.Fatal(err)
	}
	mine := c.id.String()
	for _, seed := range []*nstancev1.SubmitPublicKeysRequest{
		{},
		{Keys: []*nstancev1.PublicKey{{Name: "node.pub", Pkix: pkix}}},
		{Keys: []*nstancev1.PublicKey{{Name: "node.pub", Pkix: pkix[:20]}}},
		{Keys: []*nstancev1.PublicKey{{Name: "node.pub", Pkix: pkix}, {Name: "../node.pub", Pkix: pkix}}},
		{Keys: []*nstancev1.PublicKey{nil, {}}},
		{InstanceId: "knd", Keys: []*nstancev1.PublicKey{{Name: "node.pub", Pkix: pkix}}},
	} {
		raw, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, seed.GetInstanceId() == "")
	}
	f.Fuzz(func(t *testing.T, raw []byte, own bool) { // own: use the test's instance ID, which differs in each run
		var req nstancev1.SubmitPublicKeysRequest
		if proto.Unmarshal(raw, &req) != nil {
			return // rejected by gRPC
		}
		if own {
			req.InstanceId = mine
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := c.SubmitPublicKeys(ctx, &req)
		good := req.GetInstanceId() == mine && len(req.GetKeys()) > 0 && len(req.GetKeys()) <= 128 &&
			!slices.ContainsFunc(req.GetKeys(), func(k *nstancev1.PublicKey) bool {
				return k.GetName() != "node.pub" || filegen.CheckKey(k.GetPkix(), filegen.Ed25519) != nil
			})
		if code := status.Code(err); good != (err == nil) || err != nil && code != codes.InvalidArgument &&
			code != codes.PermissionDenied {
			t.Errorf("%v: %v", &req, err)
		}
		stored, err := w.cache.Keys(ctx, c.id)
		if err != nil || slices.ContainsFunc(stored, func(k localdb.Key) bool {
			return k.Name != "node.pub" || filegen.CheckKey(k.PKIX, filegen.Ed25519) != nil
		}) {
			t.Errorf("kept: %v, %v", stored, err)
		}
	})
}
