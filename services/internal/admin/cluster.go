package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

func (a *app) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Keys, registrations and secrets of a cluster, in its bucket",
		Long: `The commands of "cluster" work on the bucket of a cluster directly. No server needs to
run.

The bucket has the cluster's keys, such as the CA's private key, and the secrets that you
have stored. All are sealed with the encryption key: 32 bytes, raw or in base64. Commands
read the encryption key from NSTANCE_ENCRYPTION_KEY, unless --key-provider and
--key-source name another place.`}
	s := new(secretFlags)
	cmd.AddCommand(a.clusterInitCommand(s), a.clusterNonceCommand(s), a.registerOperatorCommand(s),
		a.operatorCommand(s), a.secretCommand(s), a.rotateKeyCommand(s), a.rotateCACommand(s),
		a.rotateWorkloadCACommand(s), a.clusterJournalCommand(s),
		a.verifyCommand(s), a.snapshotCommand(s), a.restoreCheckCommand(s), a.restoreCommand(s))
	s.add(cmd)
	return cmd
}

func (a *app) clusterInitCommand(s *secretFlags) *cobra.Command {
	var certFile, keyFile string
	cmd := &cobra.Command{
		Use: "init", Short: "Make a cluster's CA and keys", Args: cobra.NoArgs,
		Long: `Makes a cluster's CA, and a key that signs registration nonces, unless they exist. Writes
the CA's certificate to cluster/ca.crt in the bucket. Running the command again changes
nothing. Clusters made with Terraform do not need "cluster init", because the Terraform
provider makes the CA and the key.

If a cluster in use has lost its CA, "cluster init" fails and makes no new CA.`,
		Example: `  export NSTANCE_ENCRYPTION_KEY=$(openssl rand -base64 32)   # keep it: nothing can be read without
  nstance-admin cluster init --cluster-id example --storage-bucket my-bucket
  nstance-admin cluster init --cluster-id example --storage-bucket my-bucket --ca-cert ca.pem --ca-key ca-key.pem`,
	}
	cmd.Flags().StringVar(&certFile, "ca-cert", "", "import this CA certificate (PEM) instead of making one")
	cmd.Flags().StringVar(&keyFile, "ca-key", "", "private key of the certificate in --ca-cert (PEM, unencrypted)")
	cmd.MarkFlagsRequiredTogether("ca-cert", "ca-key")
	f := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		result, err := inCluster(cmd.Context(), a, s, need{key: true, id: true},
			func(ctx context.Context, c *cluster) (initResult, error) {
				return a.initCluster(ctx, c, certFile, keyFile)
			})
		if err != nil {
			return err
		}
		return a.show(*f, result, func(w io.Writer) error {
			made := map[bool]string{true: "made", false: "was there"}
			return writeFacts(w, a.style.out, []fact{
				{"Cluster", result.Cluster}, {"CA", made[result.CACreated] + ", " + result.CAFingerprint},
				{"CA ends", stamp(result.CANotAfter)},
				{"Nonce key", made[result.NonceKeyCreated]}, {"Encryption key", result.EncryptionKey},
			})
		})
	}
	return cmd
}

type initResult struct {
	Cluster         string    `json:"cluster_id"`
	CACreated       bool      `json:"ca_created"`
	CAFingerprint   string    `json:"ca_fingerprint"` // SHA-256 in hexadecimal
	CANotAfter      time.Time `json:"ca_not_after"`
	NonceKeyCreated bool      `json:"nonce_key_created"`
	EncryptionKey   string    `json:"encryption_key_id"` // the ID of the key, not the key itself
}

func (a *app) initCluster(ctx context.Context, c *cluster, certFile, keyFile string) (initResult, error) {
	var created bool
	var err error
	if certFile != "" {
		created, err = a.importCA(ctx, c, certFile, keyFile)
		if err != nil {
			return initResult{}, err
		}
	}
	ca, made, err := c.state.EnsureCA(ctx)
	if err != nil {
		return initResult{}, err
	}
	_, nonceKey, err := c.state.EnsureNonceKey(ctx)
	if err != nil {
		return initResult{}, err
	}
	if created || made || nonceKey {
		a.journalChange(ctx, c.bucket, record.ClusterEvent{Kind: "keys_made",
			Message: "CA " + authority.Fingerprint(ca.Certificate())})
	}
	return initResult{c.id, created || made, authority.Fingerprint(ca.Certificate()), ca.Certificate().NotAfter.UTC(),
		nonceKey, c.ring.Current.ID().String()}, nil
}

func (a *app) importCA(ctx context.Context, c *cluster, certFile, keyFile string) (bool, error) {
	cert, err := os.ReadFile(certFile)
	if err != nil {
		return false, fmt.Errorf("read CA certificate: %w", err)
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return false, fmt.Errorf("read CA key: %w", err)
	}
	ca, err := authority.ImportCA(c.id, cert, key, a.Rand, a.Now())
	if err != nil {
		return false, err
	}
	return c.state.StoreCA(ctx, ca)
}

func (a *app) clusterNonceCommand(s *secretFlags) *cobra.Command {
	var tenant, output, role string
	var expiry time.Duration
	cmd := &cobra.Command{
		Use: "nonce", Short: "Make a registration nonce for an operator", Args: cobra.NoArgs,
		Long: `Makes a registration nonce: a JWT with which an operator registers once, at any shard,
and gets its certificate. Anyone who has the nonce can use it, so keep it like a
password. The command writes the operator's ID and the time when the nonce expires to
standard error.`,
		Example: `  nstance-admin cluster nonce --cluster-id example --storage-bucket my-bucket --tenant default --expiry 3h --output nonce.jwt

  kubectl create secret generic nstance-operator-nonce \
    --from-literal=nonce.jwt="$(nstance-admin cluster nonce --cluster-id example --storage-bucket my-bucket --output -)"`,
	}
	cmd.Flags().StringVar(&tenant, "tenant", ident.DefaultTenant, "tenant that the operator will act for")
	cmd.Flags().StringVar(&role, "role", string(record.RoleOperator),
		"what the operator may do: viewer (read), operator (also change what its tenant has), admin (also what "+
			"concerns whole shards)")
	cmd.Flags().DurationVar(&expiry, "expiry", authority.OperatorNonceTTL, "how long the nonce can be used")
	cmd.Flags().StringVar(&output, "output", "-", "file to write the nonce to, or - for standard output")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := ident.ValidateTenantName(tenant); err != nil {
			return usagef("--tenant: %w", err)
		}
		if !slices.Contains(record.OperatorRoles, record.OperatorRole(role)) {
			return usagef("--role %s is not viewer, operator or admin", role)
		}
		if expiry < time.Second {
			return usagef("--expiry %s is too short", expiry)
		}
		var nonce authority.Nonce
		var claims authority.NonceClaims
		err := a.withCluster(cmd.Context(), s, need{key: true}, func(ctx context.Context, c *cluster) error {
			key, err := c.state.LoadNonceKey(ctx)
			if err != nil {
				return noKeysYet(err)
			}
			nonce, claims, err = authority.MintNonce(key, authority.NonceSpec{Role: authority.RoleOperator,
				Cluster: c.id, Tenant: tenant, TTL: expiry, OperatorRole: record.OperatorRole(role)}, a.Rand, a.Now())
			if err == nil {
				a.journalChange(ctx, c.bucket, record.ClusterEvent{Kind: "nonce_made", Tenant: tenant,
					Subject: claims.ID.String(), Message: "role " + role})
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := a.writeSecret(output, []byte(nonce.Reveal())); err != nil {
			return err
		}
		a.note("Nonce of operator %s, tenant %s: good for one registration until %s.", claims.ID, claims.Tenant,
			stamp(claims.ExpiresAt))
		return nil
	}
	return cmd
}

// noKeysYet adds a hint to an error about a cluster without keys.
func noKeysYet(err error) error {
	if errors.Is(err, secretstore.ErrNotFound) {
		return withHint(err,
			"nstance-admin cluster init makes the cluster's keys, and so does a shard's first leader; if they "+
				"should be there, check --storage-bucket and --storage-prefix")
	}
	return err
}

// writeSecret writes to a file with access for the owner only, or to standard output if path is "-". Standard output
// gets an extra line break only if it is a terminal, because a line break is not part of the secret.
func (a *app) writeSecret(path string, content []byte) error {
	if path != "-" {
		if err := renameio.WriteFile(path, content, 0o600); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		return nil
	}
	if isTerminal(a.Stdout) {
		content = append(content, '\n')
	}
	_, err := a.Stdout.Write(content)
	return err
}
