package registerapi_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// FuzzRegisterOperator checks that a client without an operator's nonce gets no certificate, and that the error does
// not contain the nonce.
func FuzzRegisterOperator(f *testing.F) {
	w := newTestLeader(f)
	good, _ := w.operatorNonce(f)
	agents := w.nonce(f, w.Created(f), nil)
	key := transporttest.Public(transporttest.NewKey(f))
	f.Add(good[:len(good)-2], []byte(key))
	f.Add(good, []byte(key[:31]))
	f.Add(agents, []byte(key))
	f.Add("", []byte{})
	f.Add("a.b.c", []byte(key))
	f.Add(strings.ReplaceAll(good, ".", ". "), []byte(key))
	f.Fuzz(func(t *testing.T, nonce string, key []byte) {
		nonce = strings.ToValidUTF8(nonce, "")
		if nonce == good && len(key) == 32 {
			return // covered by TestRegisterOperator
		}
		answer, err := w.client.RegisterOperator(t.Context(), &nstancev1.RegisterOperatorRequest{Nonce: nonce,
			PublicKey: key})
		switch code := status.Code(err); {
		case len(answer.GetCertificate()) > 0, code != codes.InvalidArgument && code != codes.Unauthenticated &&
			code != codes.PermissionDenied && code != codes.ResourceExhausted:
			t.Errorf("%q: %v, %v", nonce, answer, err)
		case len(nonce) > 20 && strings.Contains(err.Error(), nonce):
			t.Errorf("the refusal tells the nonce: %v", err)
		}
	})
}
