package servers_test

import (
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
)

// FuzzIdentity loads identities from arbitrary texts. Each load must return the identity of an operator, or an error
// that Advice can explain. The error must not quote a key.
func FuzzIdentity(f *testing.F) {
	ca := newCA(f, cluster)
	for _, s := range []servers.Settings{
		identity(f, ca, authority.RoleOperator, time.Now()), identity(f, ca, authority.RoleAgent, time.Now()), {},
		{CA: "x", Certificate: "x", PrivateKey: "x"},
	} {
		f.Add(s.CA, s.Certificate, s.PrivateKey)
		f.Add(s.CA, s.PrivateKey, s.Certificate) // certificate and key swapped
		f.Add(s.PrivateKey, s.Certificate, s.CA)
	}
	f.Fuzz(func(t *testing.T, ca, cert, key string) {
		got, err := servers.New(servers.Settings{CA: ca, Certificate: cert, PrivateKey: key}, nil).Identity()
		if err == nil {
			if got.Who.Role != authority.RoleOperator || got.Who.Validate() != nil {
				t.Errorf("%+v", got.Who)
			}
			return
		}
		if none := ca+cert+key == ""; errors.Is(err, servers.ErrNoIdentity) != none ||
			errors.Is(err, servers.ErrIdentity) == none {
			t.Errorf("%v", err)
		}
		for _, text := range []string{ca, cert, key} {
			quotesKey(t, err, text)
		}
	})
}

// quotesKey fails the test if the error contains a line of at least 16 characters from a PEM block in text.
func quotesKey(t *testing.T, err error, text string) {
	t.Helper()
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return
		}
		block.Headers = nil
		for line := range strings.SplitSeq(string(pem.EncodeToMemory(block)), "\n") {
			if len(line) >= 16 && !strings.HasPrefix(line, "-----") && strings.Contains(err.Error(), line) {
				t.Errorf("the error quotes what may be a key: %v", err)
			}
		}
	}
}
