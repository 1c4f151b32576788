package transport

import (
	"crypto/tls"
	"errors"
	"fmt"

	"google.golang.org/grpc/credentials"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

// ClientCredentials returns the credentials with which this server connects to another server of its shard. This server
// presents its own certificate. The other server's certificate must be from the cluster's CA, for the given server ID
// and the dialed address.
func ClientCredentials(source *Source, server string) credentials.TransportCredentials {
	self := source.options.Identity
	want := authority.Identity{Role: authority.RoleServer, Cluster: self.Cluster, Shard: self.Shard, Server: server}
	config := source.config()
	config.GetCertificate = nil
	config.RootCAs = source.roots.Load()
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return source.Certificate()
	}
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("server certificate: there is none")
		}
		identity, err := authority.ParseIdentity(state.PeerCertificates[0])
		if err != nil {
			return err
		}
		if identity != want {
			return fmt.Errorf("server certificate: it is of %s, want %s", identity.URI(), want.URI())
		}
		return nil
	}
	return credentials.NewTLS(config)
}
