package admin

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

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
		if tenant != "" {
			if err := ident.ValidateTenantName(tenant); err != nil {
				return usagef("--tenant: %w", err)
			}
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
calls, and within fifteen minutes servers close its open streams. Its certificate cannot be
renewed, and its ID cannot register again. Remove an operator when its identity was stolen
or is no longer needed. Removing an operator twice changes nothing.`,
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
		var superseded *clusterstate.SupersededOperatorError
		if errors.As(err, &superseded) && superseded.Token != "" && superseded.Token != token {
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
