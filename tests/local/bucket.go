package local

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/clusterstate"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keyring"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/objstore/s3"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/contract/secretstore"
)

// State reads and writes the stack's bucket, as Terraform and nstance-admin do.
func (s *Stack) State(ctx context.Context) (*clusterstate.State, error) {
	store, err := s3.New(ctx, s3.Options{Bucket: Bucket, Region: region, Endpoint: s.storeURL(), PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(accessKey, accessKey, "")})
	if err != nil {
		return nil, err
	}
	key, err := keyring.Parse([]byte(encryptionKey))
	if err != nil {
		return nil, err
	}
	secrets := secretstore.NewObjects(secretstore.Options{Bucket: store, Cluster: Cluster,
		Ring: keyring.Ring{Current: key}, Rand: rand.Reader})
	return clusterstate.New(clusterstate.Options{Cluster: store, Shard: store, ClusterID: Cluster, ShardID: Shard,
		Secrets: secrets}), nil
}

// ConfigWritten is when the shard's configuration was written, by the object store: its files are the objects.
func (s *Stack) ConfigWritten() (time.Time, error) {
	info, err := os.Stat(filepath.Join(s.StoreDir(), filepath.FromSlash(keys.Config(Shard))))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// Objects lists the keys of everything in the bucket, sorted.
func (s *Stack) Objects() (found []string, err error) {
	err = filepath.WalkDir(s.StoreDir(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		key, err := filepath.Rel(s.StoreDir(), path)
		if err != nil {
			return err
		}
		if entry.IsDir() && key != "." && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir // the store's own
		}
		if !entry.IsDir() {
			found = append(found, filepath.ToSlash(key))
		}
		return nil
	})
	return found, err
}

// PutConfig writes the example's configuration (examples/config-tmux.jsonc), made to fit this stack and changed by
// change, as `nstance-admin config push` would.
func (s *Stack) PutConfig(ctx context.Context, change func(*config.Shard)) error {
	path := filepath.Join(s.Root, "examples", "config-tmux.jsonc")
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	shard, problems := config.Parse(path, src)
	if len(problems) > 0 {
		return problems
	}
	shard.Server.Bind = config.Addresses{Health: s.bind(s.Ports.Health), Election: s.bind(s.Ports.Election),
		Registration: s.bind(s.Ports.Registration), Operator: s.bind(s.Ports.Operator), Agent: s.bind(s.Ports.Agent)}
	shard.Server.Advertise = config.Addresses{}
	if s.Network != nil {
		shard.Server.Advertise = config.Addresses{Registration: s.address(Leader, s.Ports.Registration),
			Operator: s.address(Leader, s.Ports.Operator),
			Agent:    s.address(Leader, s.Ports.Agent)}
	}
	shard.Server.Provider.Options = s.ProviderOptions()
	if change != nil {
		change(shard)
	}
	body := config.Encode(shard)
	if _, problems := config.Parse("made from "+path, body); len(problems) > 0 {
		return problems
	}
	state, err := s.State(ctx)
	if err != nil {
		return err
	}
	_, token, err := state.ReadConfig(ctx, Shard)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return err
	}
	_, err = state.WriteConfig(ctx, Shard, body, token)
	return err
}

// ProviderOptions are those of the stack's tmux provider.
func (s *Stack) ProviderOptions() map[string]string {
	options := map[string]string{"dir": s.AgentsDir(), "session": Session, "agent": s.program("nstance-agent")}
	if !s.SharedTmux {
		options["socket"] = s.socket()
	}
	return options
}

// identity makes and registers an operator of the default tenant, and returns what it shows and whom it trusts. dir, if
// it is not empty, gets it too.
func (s *Stack) identity(ctx context.Context, dir string) (tls.Certificate, *x509.CertPool, error) {
	none := tls.Certificate{}
	state, err := s.State(ctx)
	if err != nil {
		return none, nil, err
	}
	ca, cert, private, err := issue(ctx, state, Cluster)
	if err != nil {
		return none, nil, err
	}
	if dir != "" {
		if err := save(dir, ca.Certificate(), cert, private); err != nil {
			return none, nil, err
		}
	}
	identity, pool := forTLS(ca, cert, private)
	return identity, pool, nil
}

// Identity registers an operator of the default tenant in a cluster's bucket and returns what it shows to servers, and
// whom it trusts.
func Identity(ctx context.Context, state *clusterstate.State, cluster string) (tls.Certificate, *x509.CertPool, error) {
	ca, cert, private, err := issue(ctx, state, cluster)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	identity, pool := forTLS(ca, cert, private)
	return identity, pool, nil
}

func forTLS(ca authority.CA, cert *x509.Certificate, private ed25519.PrivateKey) (tls.Certificate, *x509.CertPool) {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Certificate())
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: private, Leaf: cert}, pool
}

// issue makes an operator's key, has the CA certify it, and puts it into the bucket.
func issue(ctx context.Context, state *clusterstate.State, cluster string) (authority.CA, *x509.Certificate,
	ed25519.PrivateKey, error) {
	ca, err := state.LoadCA(ctx)
	if err != nil {
		return authority.CA{}, nil, nil, fmt.Errorf("load the CA: %w", err)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return authority.CA{}, nil, nil, err
	}
	now := time.Now()
	id, err := ident.NewID(ident.OperatorPrefix, now, rand.Reader)
	if err != nil {
		return authority.CA{}, nil, nil, err
	}
	cert, err := ca.IssueClient(authority.ClientSpec{
		Identity:  authority.Identity{Role: authority.RoleOperator, Cluster: cluster, Tenant: Tenant, ID: id},
		PublicKey: public,
	}, rand.Reader, now)
	if err != nil {
		return authority.CA{}, nil, nil, err
	}
	_, err = state.PutOperator(ctx, record.Operator{Schema: record.OperatorSchema, Revision: 1, ID: id,
		Cluster: cluster, Tenant: Tenant, Writer: id.String(),
		PublicKey: public, Certificate: record.CertificateRef{Serial: authority.Serial(cert), NotAfter: cert.NotAfter},
		CreatedAt: now}, "")
	if err != nil {
		return authority.CA{}, nil, nil, fmt.Errorf("register an operator: %w", err)
	}
	return ca, cert, private, nil
}

// save writes an identity as `nstance-admin cluster register-operator` does.
func save(dir string, ca, cert *x509.Certificate, key ed25519.PrivateKey) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"ca.crt":       authority.EncodeBundle(ca),
		"identity.crt": authority.EncodeCertificate(cert),
		"identity.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
