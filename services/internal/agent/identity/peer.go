package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// agentOf checks that a certificate names the instance in the role of an agent, and returns its cluster.
func agentOf(leaf *x509.Certificate, id ident.ID) (cluster string, err error) {
	cluster, path, err := spiffe(leaf)
	if err != nil {
		return "", err
	}
	if len(path) != 4 || path[0] != "tenant" || path[2] != "agent" {
		return "", errors.New("it is not an agent's")
	}
	if path[3] != id.String() || leaf.Subject.CommonName != id.String() {
		return "", fmt.Errorf("it is another instance's (%q)", path[3])
	}
	return cluster, nil
}

// VerifyServer checks that a certificate, whose chain and host name TLS has verified, belongs to a server of the cluster. Agents and
// operators have certificates of the same CA. An empty cluster accepts any.
func VerifyServer(leaf *x509.Certificate, cluster string) error {
	got, path, err := spiffe(leaf)
	if err != nil {
		return fmt.Errorf("server certificate: %w", err)
	}
	if len(path) != 4 || path[0] != "shard" || path[2] != "server" {
		return errors.New("server certificate: it is not a server's")
	}
	if cluster != "" && got != cluster {
		return fmt.Errorf("server certificate: it is of cluster %q, ours is %q", got, cluster)
	}
	return nil
}

// spiffe returns the trust domain and path of a certificate's only SPIFFE ID.
func spiffe(leaf *x509.Certificate) (cluster string, path []string, err error) {
	if len(leaf.URIs) != 1 || leaf.URIs[0].Scheme != "spiffe" {
		return "", nil, errors.New("it has no SPIFFE ID, or more than one")
	}
	uri := leaf.URIs[0]
	if uri.Host == "" || uri.User != nil || uri.RawQuery != "" || uri.Fragment != "" || uri.Path != uri.EscapedPath() {
		return "", nil, errors.New("its SPIFFE ID is malformed")
	}
	return uri.Host, strings.Split(strings.TrimPrefix(uri.Path, "/"), "/"), nil
}
