package admin

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

func (a *app) secretCommand(s *secretFlags) *cobra.Command {
	cmd := &cobra.Command{Use: "secret", Short: "Set, get, list and delete secrets",
		Long: `To give a secret to instances, add a file of kind "secret" to their template. Templates
cannot deliver the four secrets that are the cluster's own keys: ca.key, ca-next.key,
workload-ca.key and registration-nonce.key.`}
	cmd.AddCommand(a.secretSetCommand(s), a.secretGetCommand(s), a.secretListCommand(s), a.secretDeleteCommand(s))
	return cmd
}

func (a *app) secretSetCommand(s *secretFlags) *cobra.Command {
	var file string
	var absent bool
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Store a secret", Args: cobra.ExactArgs(1),
		Long: `Stores a secret. The command reads it, byte for byte, from standard input or a file, but
never from the command line, which other users of the machine can see.

"secret set" can also restore one of the cluster's own keys, such as ca.key, from a
backup, but only if this key is missing. It never replaces such a key.`,
		Example: `  printf %s "$PASSWORD" | nstance-admin cluster secret set db.password --storage-bucket my-bucket
  nstance-admin cluster secret set tls.key --from-file tls.key --storage-bucket my-bucket`,
	}
	cmd.Flags().StringVar(&file, "from-file", "-", "file to read the secret from, or - for standard input")
	cmd.Flags().BoolVar(&absent, "if-absent", false, "fail if there is a secret of this name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := args[0]
		if err := usageOf(cmd, secretstore.ValidateName(name)); err != nil {
			return err
		}
		content, err := a.readSecret(file)
		if err != nil {
			return err
		}
		cond := secretstore.Any
		if absent || ours(name) {
			cond = secretstore.IfAbsent
		}
		if file == "-" && bytes.HasSuffix(content, []byte("\n")) && !ours(name) {
			a.note("The value ends with a line break, which is stored too; printf %%s leaves it out.")
		}
		err = a.withCluster(cmd.Context(), s, need{key: true}, func(ctx context.Context, c *cluster) error {
			if err := checkOurs(c, name, content); err != nil {
				return err
			}
			err := c.secrets.Put(ctx, name, secretstore.NewValue(content), cond)
			if err == nil {
				a.journalChange(ctx, c.bucket, record.ClusterEvent{Kind: "secret_set", Subject: name})
			}
			return err
		})
		switch {
		case errors.Is(err, secretstore.ErrExists) && ours(name):
			return withHint(err, "a cluster keeps its keys; nothing was changed")
		case errors.Is(err, secretstore.ErrExists):
			return withHint(err, "leave --if-absent out to replace it")
		case err != nil:
			return err
		}
		a.note("Secret %s is stored.", name)
		return nil
	}
	return cmd
}

// ours reports whether a secret is one of the cluster's own secrets.
func ours(name string) bool {
	return name == secretstore.CAKey || name == secretstore.NextCAKey || name == secretstore.WorkloadCAKey ||
		name == secretstore.NonceKey
}

// checkOurs checks the content of the cluster's own secrets.
func checkOurs(c *cluster, name string, content []byte) error {
	switch name {
	case secretstore.CAKey:
		ca, err := authority.ParseCA(content)
		if err != nil {
			return err
		}
		return ca.CheckCluster(c.id)
	case secretstore.NextCAKey:
		next, err := authority.ParseNextKeys(content)
		if err != nil {
			return err
		}
		return next.CA.CheckCluster(c.id)
	case secretstore.WorkloadCAKey:
		_, err := authority.ParseWorkloadCAs(content, c.id, clusterstate.ErrForeign)
		return err
	case secretstore.NonceKey:
		_, err := authority.ParseNonceKey(content)
		return err
	}
	return nil
}

// readSecret reads a file or standard input. Errors do not quote the content.
func (a *app) readSecret(path string) ([]byte, error) {
	if path == "-" && isTerminal(a.Stdin) {
		a.note("Type or paste the secret; end with Ctrl-D on an empty line.")
	}
	switch content, err := a.readInput(path, secretstore.MaxValue); {
	case err != nil:
		return nil, fmt.Errorf("read secret: %w", err)
	case len(content) == 0:
		return nil, withHint(errors.New("the secret is empty"), "pipe it in, or name a file with --from-file")
	case len(content) > secretstore.MaxValue:
		return nil, fmt.Errorf("the secret has more than %d bytes", secretstore.MaxValue)
	default:
		return content, nil
	}
}

func (a *app) secretGetCommand(s *secretFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Print a secret", Args: cobra.ExactArgs(1),
		Long: `Prints a secret to standard output, byte for byte. With --output json or yaml, a value
that is not text is printed in base64 as "value_base64".`,
		Example: `  nstance-admin cluster secret get db.password --storage-bucket my-bucket`,
	}
	f := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := usageOf(cmd, secretstore.ValidateName(args[0])); err != nil {
			return err
		}
		secret, err := inCluster(cmd.Context(), a, s, need{key: true},
			func(ctx context.Context, c *cluster) (secretstore.Secret, error) { return c.secrets.Get(ctx, args[0]) })
		if errors.Is(err, secretstore.ErrNotFound) {
			return withHint(err, "nstance-admin cluster secret list shows those that exist")
		}
		if err != nil {
			return err
		}
		shown := shownSecret{Name: secret.Name, KeyID: secret.KeyID}
		if content := secret.Value.Reveal(); utf8.Valid(content) {
			shown.Value = string(content)
		} else {
			shown.Base64 = base64.StdEncoding.EncodeToString(content)
		}
		return a.show(*f, shown, func(io.Writer) error { return a.writeSecret("-", secret.Value.Reveal()) })
	}
	return cmd
}

// shownSecret is the output of the command that prints a secret.
type shownSecret struct {
	Name   string `json:"name"`
	KeyID  string `json:"encryption_key_id,omitempty"`
	Value  string `json:"value,omitempty"`
	Base64 string `json:"value_base64,omitempty"`
}

func (a *app) secretListCommand(s *secretFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the names of secrets", Args: cobra.NoArgs,
		Long:    "Lists the names of the cluster's secrets. The encryption key is not needed.",
		Example: `  nstance-admin cluster secret list --storage-bucket my-bucket`,
	}
	f := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		listed := []secretEntry{}
		err := a.withCluster(cmd.Context(), s, need{}, func(ctx context.Context, c *cluster) error {
			names, err := c.secrets.List(ctx)
			for _, name := range names {
				entry := secretEntry{name, "user"}
				if ours(name) {
					entry.Owner = "cluster"
				}
				listed = append(listed, entry)
			}
			return err
		})
		if err != nil {
			return err
		}
		return showAll(a, *f, map[string]any{"secrets": listed}, listed, "There are no secrets.",
			[]string{"NAME", "OWNER"}, func(entry secretEntry) []cell { return plain(entry.Name, entry.Owner) })
	}
	return cmd
}

type secretEntry struct {
	Name  string `json:"name"`
	Owner string `json:"owner"` // cluster or user
}

func (a *app) secretDeleteCommand(s *secretFlags) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "Delete a secret", Args: cobra.ExactArgs(1),
		Long: `Deletes a secret. It is no error if the secret does not exist. To delete one of the
cluster's own keys, add --force. A cluster that lost its key ca.key cannot start servers or
renew certificates.`,
		Example: `  nstance-admin cluster secret delete db.password --storage-bucket my-bucket --yes`,
	}
	cmd.Flags().BoolVar(&force, "force", false, "delete one of the cluster's own keys, too")
	confirm := confirmFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := args[0]
		if err := usageOf(cmd, secretstore.ValidateName(name)); err != nil {
			return err
		}
		if ours(name) && !force {
			return withHint(
				fmt.Errorf("%s is one of the cluster's own keys: without it servers and registrations stop working",
					name), "keep a copy (secret get), then use --force")
		}
		if done, err := a.confirm(cmd, confirm, "secret "+name+" is deleted"); done || err != nil {
			return err
		}
		err := a.withCluster(cmd.Context(), s, need{}, func(ctx context.Context, c *cluster) error {
			err := c.secrets.Delete(ctx, name)
			if err == nil {
				a.journalChange(ctx, c.bucket, record.ClusterEvent{Kind: "secret_deleted", Subject: name})
			}
			return err
		})
		if err != nil {
			return err
		}
		a.note("Secret %s is deleted.", name)
		return nil
	}
	return cmd
}

func (a *app) rotateKeyCommand(s *secretFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rotate-key", Short: "Seal all secrets again with the current encryption key", Args: cobra.NoArgs,
		Long: `Finds the secrets that are sealed with an old encryption key, and seals them with the
current key. Servers can read the secrets at all times if you do the following steps in
this order:

  1. make a new key; give it to the servers as encryption_key in the shards'
     configurations, and the one before under old_encryption_keys
  2. run this command with the new key and --old-key
  3. take the old key out of the configurations

On a terminal, "rotate-key" asks for a confirmation. Without a terminal, it runs without
--yes, because it deletes nothing.`,
		Example: `  NSTANCE_ENCRYPTION_KEY=$NEW OLD_KEY=$OLD nstance-admin cluster rotate-key --old-key env:OLD_KEY --storage-bucket my-bucket`,
	}
	f, confirm := outputFlag(cmd), confirmFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		const what = "every secret that is under an old encryption key is sealed with the current one"
		if done, err := a.confirmChange(cmd, confirm, false, what); done || err != nil {
			return err
		}
		result := rotation{Secrets: []rotated{}}
		var errs []error
		err := a.withCluster(cmd.Context(), s, need{key: true}, func(ctx context.Context, c *cluster) error {
			objects, ok := c.secrets.(*secretstore.Objects)
			if !ok {
				return usagef(
					"--secrets-provider %s: only secrets in object storage are sealed with our key; the secrets "+
						"service uses its own key", s.provider)
			}
			names, err := objects.List(ctx)
			result.KeyID = c.ring.Current.ID().String()
			for _, name := range names {
				done, err := objects.Reseal(ctx, name)
				entry := rotated{Name: name, Resealed: done}
				if err != nil {
					entry.Error = err.Error()
					errs = append(errs, err)
				}
				result.Secrets = append(result.Secrets, entry)
			}
			if err == nil {
				a.journalChange(ctx, c.bucket, record.ClusterEvent{Kind: "secrets_resealed",
					Message: fmt.Sprintf("%s, %d failed, key %s", count(len(names), "secret"), len(errs),
						result.KeyID)})
			}
			return err
		})
		if err != nil {
			return err
		}
		err = a.show(*f, result, func(w io.Writer) error {
			return a.table(w, []string{"NAME", "KEY " + result.KeyID},
				rowsOf(result.Secrets, func(entry rotated) []cell { return plain(entry.Name, entry.what()) }))
		})
		if len(errs) > 0 {
			err = withHint(fmt.Errorf("%d of %s are not under the current key: %w", len(errs),
				count(len(result.Secrets), "secret"), errs[0]),
				"give every key that is still in use with --old-key, and run it again")
		}
		return err
	}
	return cmd
}

type rotation struct {
	KeyID   string    `json:"encryption_key_id"`
	Secrets []rotated `json:"secrets"`
}

type rotated struct {
	Name     string `json:"name"`
	Resealed bool   `json:"resealed"`
	Error    string `json:"error,omitempty"`
}

func (r rotated) what() string {
	switch {
	case r.Error != "":
		return "failed"
	case r.Resealed:
		return "sealed again"
	}
	return "was current"
}
