package admin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/hex"
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
identity.key. nstance-admin itself uses such a directory as --identity-dir, and writes
to the directory in NSTANCE_ADMIN_IDENTITY_DIR or in the context if --output-dir is not
given.

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
	cmd.Flags().StringVar(&r.dir, "output-dir", "", "directory to write the identity to; by default the "+
		"identity-dir of the environment or the context")
	cmd.Flags().IntVar(&hours, "cert-ttl-hours", int(authority.OperatorTTL/time.Hour), "how long the certificate lasts")
	f := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := ident.ValidateTenantName(r.tenant); err != nil {
			return usagef("--tenant: %w", err)
		}
		if r.dir == "" {
			var err error
			if r.dir, err = a.saved("identity-dir"); err != nil {
				return err
			}
		}
		if r.dir == "" {
			return &usageError{err: errors.New("--output-dir is missing"),
				hint: "add --output-dir DIRECTORY, or set " + envIdentity}
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
			issued := map[bool]string{true: "issued", false: "still good"}
			return writeFacts(w, a.style.out, []fact{
				{"Operator", result.ID}, {"Cluster", result.Cluster}, {"Tenant", result.Tenant},
				{"Certificate", issued[result.Issued] + ", ends " + stamp(result.NotAfter)}, {"Identity", result.Dir},
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
	if _, ok := errors.AsType[*clusterstate.SupersededOperatorError](err); ok {
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

func (a *app) operatorCommand(s *secretFlags) *cobra.Command {
	cmd := &cobra.Command{Use: "operator", Short: "List and remove registered operators",
		Long: `An operator is a client of shards with its own certificate: nstance-operator in a
Kubernetes cluster, or a user of nstance-admin. Register an operator with "nstance-admin
cluster nonce" or "nstance-admin cluster register-operator".`}
	cmd.AddCommand(a.operatorListCommand(s), a.operatorRemoveCommand(s))
	return cmd
}

type operatorList struct {
	Operators []operatorEntry `json:"operators"`
}

type operatorEntry struct {
	ID        string    `json:"operator_id"`
	Tenant    string    `json:"tenant"`
	Name      string    `json:"name,omitempty"`
	Role      string    `json:"role"`
	CreatedAt time.Time `json:"created_at"`
	NotAfter  time.Time `json:"not_after"` // of its newest certificate
	RemovedAt time.Time `json:"removed_at,omitzero"`
}

func (a *app) operatorListCommand(s *secretFlags) *cobra.Command {
	var tenant string
	var removed bool
	cmd := &cobra.Command{
		Use: "list", Short: "List registered operators", Args: cobra.NoArgs,
		Long: `Lists the operators, the oldest first, each with the time when its newest certificate
expires. The command fails if an operator's record is not signed by the cluster's CA.`,
		Example: `  nstance-admin cluster operator list --storage-bucket my-bucket`,
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "only operators of this tenant")
	cmd.Flags().BoolVar(&removed, "removed", false, "also show removed operators")
	f := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := ident.ValidateTenantName(tenant); tenant != "" && err != nil {
			return usagef("--tenant: %w", err)
		}
		listed := operatorList{Operators: []operatorEntry{}}
		err := a.withCluster(cmd.Context(), s, need{key: true}, func(ctx context.Context, c *cluster) error {
			all, err := c.state.ListOperators(ctx, tenant)
			for _, rec := range all {
				if !rec.Removed() || removed {
					listed.Operators = append(listed.Operators, operatorEntry{rec.ID.String(), rec.Tenant, rec.Name,
						string(cmp.Or(rec.Role, record.RoleOperator)),
						rec.CreatedAt, rec.Certificate.NotAfter, rec.RemovedAt})
				}
			}
			return err
		})
		if err != nil {
			return err
		}
		return showAll(a, *f, listed, listed.Operators, "There are no operators.", []string{"OPERATOR", "NAME", "ROLE",
			"TENANT", "REGISTERED", "CERTIFICATE ENDS"}, func(o operatorEntry) []cell {
			until := stamp(o.NotAfter)
			if !o.RemovedAt.IsZero() {
				until = "removed " + stamp(o.RemovedAt)
			}
			return plain(o.ID, o.Name, o.Role, o.Tenant, stamp(o.CreatedAt), until)
		})
	}
	return cmd
}

func (a *app) operatorRemoveCommand(s *secretFlags) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use: "remove OPERATOR-ID", Short: "Remove an operator: its certificate is refused", Args: cobra.ExactArgs(1),
		Long: `Removes an operator for good. Within five minutes every server refuses the operator's
calls (within an hour if the server cannot read the cluster's bucket), and within fifteen
minutes servers close its open streams. Its certificate cannot be renewed, and its ID cannot
register again. Remove an operator when its identity was stolen or is no longer needed.
Removing an operator twice changes nothing.`,
		Example: `  nstance-admin cluster operator remove opr06dqdx2x25trxcdb0e1fw02vn4 --storage-bucket my-bucket --yes`,
	}
	cmd.Flags().StringVar(&tenant, "tenant", ident.DefaultTenant, "tenant that the operator acts for")
	confirm := confirmFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := ident.ValidateTenantName(tenant); err != nil {
			return usagef("--tenant: %w", err)
		}
		id, err := parseOperatorID(args[0])
		if err != nil {
			return usagef("operator ID: %w", err)
		}
		if done, err := a.confirm(cmd, confirm, "operator "+id.String()+" is removed for good"); done || err != nil {
			return err
		}
		at, err := inCluster(cmd.Context(), a, s, need{key: true}, func(ctx context.Context, c *cluster) (time.Time,
			error) {
			at, err := a.removeOperator(ctx, c.state, tenant, id)
			if err == nil {
				a.journalChange(ctx, c.bucket, record.ClusterEvent{Kind: "operator_removed", Tenant: tenant,
					Subject: id.String()})
			}
			return at, err
		})
		if errors.Is(err, objstore.ErrNotFound) {
			return withHint(err, "nstance-admin cluster operator list shows those that exist, and their tenants")
		}
		if err != nil {
			return err
		}
		a.note("Operator %s is removed since %s.", id, stamp(at))
		return nil
	}
	return cmd
}

// removeOperator replaces an operator's record by a tombstone and returns the time of the operator's removal. If a
// renewal of the certificate writes the record meanwhile, removeOperator tries again.
func (a *app) removeOperator(ctx context.Context, state *clusterstate.State, tenant string, id ident.ID) (time.Time,
	error) {
	writer, err := a.writer()
	if err != nil {
		return time.Time{}, err
	}
	rec, token, err := state.GetOperator(ctx, tenant, id)
	for err == nil && !rec.Removed() {
		rec.Revision++
		rec.Writer, rec.RemovedAt = writer, a.Now().UTC()
		_, err = state.PutOperator(ctx, rec, token)
		superseded, ok := errors.AsType[*clusterstate.SupersededOperatorError](err)
		if ok && superseded.Token != "" && superseded.Token != token {
			rec, token, err = superseded.Record, superseded.Token, ctx.Err()
		}
	}
	return rec.RemovedAt, err
}

// writer returns a name for this run. The program writes the name into records.
func (a *app) writer() (string, error) {
	var random [8]byte
	if _, err := io.ReadFull(a.Rand, random[:]); err != nil {
		return "", fmt.Errorf("read random bytes: %w", err)
	}
	return "nstance-admin-" + hex.EncodeToString(random[:]), nil
}

func parseOperatorID(text string) (ident.ID, error) {
	id, err := ident.ParseID(text)
	if err == nil && id.Prefix() != ident.OperatorPrefix {
		err = fmt.Errorf("prefix %q, want %q", id.Prefix(), ident.OperatorPrefix)
	}
	return id, err
}
