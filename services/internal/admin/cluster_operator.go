package admin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

func (a *app) registerOperatorCommand(s *secretFlags) *cobra.Command {
	var r registration
	var id, role string
	var hours int
	cmd := &cobra.Command{
		Use: "register-operator", Short: "Register an operator, and write its identity", Args: cobra.NoArgs,
		Long: `Registers an operator without a nonce and without a server, and writes its identity
to a directory: ca.crt, identity.crt and, unless --public-key-file is given,
identity.key. nstance-admin itself uses such a directory as --identity-dir.

To renew the operator's certificate, run "register-operator" again with the same
directory. The operator and its key stay the same. While more than a third of the
certificate's life is left, the command changes nothing.`,
		Example: `  nstance-admin cluster register-operator --cluster-id example --storage-bucket my-bucket --output-dir ~/.nstance
  nstance-admin cluster register-operator --storage-bucket my-bucket --tenant prod --public-key-file op.pub --output-dir out`,
	}
	cmd.Flags().StringVar(&r.tenant, "tenant", ident.DefaultTenant, "tenant that the operator acts for")
	cmd.Flags().StringVar(&id, "operator-id", "",
		"the operator's ID (opr…); that of the key, or a new one, if not given")
	cmd.Flags().StringVar(&r.name, "name", "", "the operator's name in the journal, such as alice; its ID if not given")
	cmd.Flags().StringVar(&role, "role", "",
		"what the operator may do: viewer (read), operator (also change what its tenant has), admin (also what "+
			"concerns whole shards); operator if not given")
	cmd.Flags().StringVar(&r.publicKeyFile, "public-key-file", "",
		"Ed25519 public key (PEM, PKIX) whose private key stays elsewhere; a key is made if not given")
	cmd.Flags().StringVar(&r.dir, "output-dir", "", "directory to write the identity to (required)")
	cmd.Flags().IntVar(&hours, "cert-ttl-hours", int(authority.OperatorTTL/time.Hour), "how long the certificate lasts")
	f := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := ident.ValidateTenantName(r.tenant); err != nil {
			return usagef("--tenant: %w", err)
		}
		if r.dir == "" {
			return usagef("--output-dir is missing")
		}
		if hours < 1 || hours > 10*365*24 {
			return usagef("--cert-ttl-hours %d is not between 1 and %d", hours, 10*365*24)
		}
		if r.role = record.OperatorRole(role); role != "" && !slices.Contains(record.OperatorRoles, r.role) {
			return usagef("--role %s is not viewer, operator or admin", role)
		}
		if len(r.name) > record.MaxOperatorName {
			return usagef("--name has %d bytes, at most %d are allowed", len(r.name), record.MaxOperatorName)
		}
		r.ttl, r.renew = time.Duration(hours)*time.Hour, cmd.Flags().Changed("cert-ttl-hours")
		if id != "" {
			var err error
			if r.id, err = parseOperatorID(id); err != nil {
				return usagef("--operator-id: %w", err)
			}
		}
		result, err := inCluster(cmd.Context(), a, s, need{key: true},
			func(ctx context.Context, c *cluster) (registered, error) { return a.register(ctx, c, r) })
		if err != nil {
			return err
		}
		return a.show(*f, result, func(w io.Writer) error {
			return writeFacts(w, a.style.out, []fact{
				{"Operator", result.ID}, {"Cluster", result.Cluster}, {"Tenant", result.Tenant},
				{"Certificate", result.what() + ", ends " + stamp(result.NotAfter)}, {"Identity", result.Dir},
			})
		})
	}
	return cmd
}

// registration holds the parameters of a registration.
type registration struct {
	tenant, publicKeyFile, dir string
	name                       string              // "": as it is
	role                       record.OperatorRole // "": as it is
	id                         ident.ID            // zero: the operator that has the key, or a new one
	ttl                        time.Duration
	renew                      bool // also if the certificate is not due for renewal
}

// changes reports whether the registration asks for another name or role than the operator's record has.
func (r registration) changes(have record.Operator) bool {
	return r.name != "" && r.name != have.Name || r.role != "" && r.role != cmp.Or(have.Role, record.RoleOperator)
}

type registered struct {
	ID       string    `json:"operator_id"`
	Cluster  string    `json:"cluster_id"`
	Tenant   string    `json:"tenant"`
	Dir      string    `json:"identity_dir"`
	NotAfter time.Time `json:"not_after"`
	Issued   bool      `json:"issued"` // false: the existing certificate is still good
}

func (r registered) what() string {
	if r.Issued {
		return "issued"
	}
	return "still good"
}

// register writes the operator's record, then the file with the certificate. If it fails between the two writes, the
// next run finds the record by the operator's key and issues another certificate.
func (a *app) register(ctx context.Context, c *cluster, r registration) (registered, error) {
	_, bundle, err := c.state.ReadCA(ctx)
	if err != nil {
		return registered{}, noKeysYet(err)
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return registered{}, fmt.Errorf("make identity directory: %w", err)
	}
	key, err := a.operatorKey(r)
	if err != nil {
		return registered{}, err
	}
	have, id, token, err := findOperator(ctx, c.state, r, key)
	if err != nil {
		return registered{}, err
	}
	if id.IsZero() {
		if id, err = ident.NewID(ident.OperatorPrefix, a.Now(), a.Rand); err != nil {
			return registered{}, err
		}
	}
	result := registered{ID: id.String(), Cluster: c.id, Tenant: r.tenant, Dir: r.dir}
	if err := write(r.dir, operatorclient.CAFile, authority.EncodeBundle(bundle...)); err != nil {
		return registered{}, err
	}
	if notAfter, good := a.stillGood(r, have, c.state.Trust()); good && !r.renew && !r.changes(have) {
		result.NotAfter = notAfter
		return result, nil
	}
	if have.Revision == 0 {
		have = record.Operator{ID: id, Tenant: r.tenant, PublicKey: key, CreatedAt: a.Now().UTC()}
	}
	have.Name, have.Role = cmp.Or(r.name, have.Name), cmp.Or(r.role, have.Role)
	if have.Writer, err = a.writer(); err != nil {
		return registered{}, err
	}
	cert, _, err := c.state.IssueOperator(ctx, have, token, r.ttl)
	var superseded *clusterstate.SupersededOperatorError
	if errors.As(err, &superseded) {
		err = withHint(err, "another program registers or renews this operator; run the command again")
	}
	if err != nil {
		return registered{}, err
	}
	a.journalChange(ctx, c.bucket, record.ClusterEvent{Kind: "operator_registered", Tenant: r.tenant,
		Subject: id.String(), Message: strings.TrimSpace(have.Name + " " + string(have.Role))})
	if err := write(r.dir, operatorclient.CertificateFile, authority.EncodeCertificate(cert)); err != nil {
		return registered{}, err
	}
	result.NotAfter, result.Issued = cert.NotAfter.UTC(), true
	return result, nil
}

// operatorKey returns the public key to register: the given key or the key in identity.key. It generates identity.key
// if the file is missing.
func (a *app) operatorKey(r registration) (ed25519.PublicKey, error) {
	if r.publicKeyFile != "" {
		text, err := os.ReadFile(r.publicKeyFile)
		if err != nil {
			return nil, fmt.Errorf("read public key: %w", err)
		}
		key, err := authority.ParsePublicKeyPEM(text)
		if err != nil {
			return nil, withHint(fmt.Errorf("read public key %s: %w", r.publicKeyFile, err),
				"openssl pkey -in identity.key -pubout writes one")
		}
		return key, nil
	}
	path := filepath.Join(r.dir, operatorclient.KeyFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return a.makeOperatorKey(r.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read operator key: %w", err)
	}
	key, err := authority.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("read operator key %s: %w", path, err)
	}
	return key.Public().(ed25519.PublicKey), nil
}

func (a *app) makeOperatorKey(dir string) (ed25519.PublicKey, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(a.Rand, seed); err != nil {
		return nil, fmt.Errorf("make operator key: %w", err)
	}
	key := ed25519.NewKeyFromSeed(seed)
	text, err := authority.EncodePrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make operator key: %w", err)
	}
	return key.Public().(ed25519.PublicKey), write(dir, operatorclient.KeyFile, text)
}

func write(dir, name string, content []byte) error {
	if err := renameio.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	return nil
}

// findOperator returns the operator of a registration. It searches by ID if an ID is given, otherwise by key. The
// returned ID is zero if there is no such operator.
func findOperator(ctx context.Context, state *clusterstate.State, r registration,
	key ed25519.PublicKey) (record.Operator, ident.ID, objstore.Token, error) {
	id := r.id
	if id.IsZero() {
		all, err := state.ListOperators(ctx, r.tenant)
		if err != nil {
			return record.Operator{}, id, "", err
		}
		for _, rec := range all {
			if bytes.Equal(rec.PublicKey, key) && !rec.Removed() {
				id = rec.ID
			}
		}
		if id.IsZero() {
			return record.Operator{}, id, "", nil
		}
	}
	rec, token, err := state.GetOperator(ctx, r.tenant, id)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return record.Operator{}, id, "", nil
	case err != nil:
		return record.Operator{}, id, "", err
	}
	return rec, id, token, checkOperator(rec, key)
}

func checkOperator(rec record.Operator, key ed25519.PublicKey) error {
	switch {
	case rec.Removed():
		return withHint(fmt.Errorf("operator %s was removed at %s", rec.ID, stamp(rec.RemovedAt)),
			"register a new one: without --operator-id, and with a new key")
	case !bytes.Equal(rec.PublicKey, key):
		return withHint(fmt.Errorf("operator %s is registered with another key", rec.ID),
			"use the --output-dir that holds its %s, or register a new one without --operator-id",
			operatorclient.KeyFile)
	}
	return nil
}

// stillGood reports whether the certificate in r.dir is the one in the operator's record, and has more than a third of
// its life left. During a CA rotation, the certificate must also have been issued in the current step. trust identifies
// that step.
func (a *app) stillGood(r registration, rec record.Operator, trust string) (time.Time, bool) {
	text, err := os.ReadFile(filepath.Join(r.dir, operatorclient.CertificateFile))
	if err != nil || rec.Revision == 0 || trust != "" && rec.Certificate.Trust != trust {
		return time.Time{}, false
	}
	leaf, err := authority.ParseCertificate(text)
	if err != nil || authority.Serial(leaf) != rec.Certificate.Serial {
		return time.Time{}, false
	}
	return leaf.NotAfter.UTC(), a.Now().Before(authority.RenewAt(leaf))
}
