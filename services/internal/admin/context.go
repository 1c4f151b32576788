package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/tunnel"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/contexts"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

const envContext = "NSTANCE_ADMIN_CONTEXT"

// contextPath returns the path of the file with the contexts, or "" if neither XDG_CONFIG_HOME nor HOME is set.
func (a *app) contextPath() string {
	dir := a.Getenv("XDG_CONFIG_HOME")
	if dir == "" && a.Getenv("HOME") != "" {
		dir = filepath.Join(a.Getenv("HOME"), ".config")
	}
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "nstance", "config.yaml")
}

// readContexts reads the file with the contexts. If the file is missing, there are no contexts.
func (a *app) readContexts() (contexts.File, error) {
	path := a.contextPath()
	if path == "" {
		return contexts.File{}, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return contexts.File{}, nil
	}
	if err != nil {
		return contexts.File{}, fmt.Errorf("read contexts: %w", err)
	}
	file, err := parseContexts(text)
	if err != nil {
		return contexts.File{}, withHint(fmt.Errorf("read contexts: %s: %w", path, err),
			"nstance-admin context --help shows the form of the file")
	}
	return file, nil
}

// parseContexts reads and checks contexts.
func parseContexts(text []byte) (contexts.File, error) {
	file, err := contexts.Parse(text)
	for _, name := range slices.Sorted(maps.Keys(file.Contexts)) {
		if _, wrong := tunnel.Parse(file.Contexts[name]["via"]); wrong != nil {
			err = errors.Join(err, fmt.Errorf("contexts.%s.via: %w", name, wrong))
		}
	}
	return file, err
}

// writeContexts writes the file with the contexts.
func (a *app) writeContexts(file contexts.File) error {
	text, err := file.Format()
	path := a.contextPath()
	switch {
	case err != nil:
	case path == "":
		err = errors.New("neither XDG_CONFIG_HOME nor HOME is set")
	default:
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = renameio.WriteFile(path, text, 0o600)
		}
	}
	if err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	return nil
}

// currentContext returns the name and the settings of the context in use. Both are empty if none is in use.
func (a *app) currentContext() (string, contexts.Context, error) {
	file, err := a.readContexts()
	if err != nil {
		return "", nil, err
	}
	name := cmp.Or(a.Getenv(envContext), file.Current)
	if name == "" {
		return "", contexts.Context{}, nil
	}
	saved, ok := file.Contexts[name]
	if !ok {
		return "", nil, withHint(fmt.Errorf("there is no context %q in %s", name, a.contextPath()),
			"nstance-admin context list shows those that exist")
	}
	return name, saved, nil
}

func (a *app) contextCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "context", Short: "Choose the cluster that commands talk to",
		Long: `A context has the settings for one cluster. The file with the contexts is
$XDG_CONFIG_HOME/nstance/config.yaml, by default ~/.config/nstance/config.yaml:

  current: prod
  contexts:
    prod:
      servers: us-west-2a=10.0.0.100:8993,us-west-2b=10.0.1.100:8993
      identity_dir: ~/.nstance/prod
      storage_bucket: my-bucket
      storage_region: us-west-2
      key_provider: file
      key_source: ~/.nstance/prod.key
    dev:
      servers: dev-1=127.0.0.1:8993
      identity_dir: ~/.nstance/dev
      shard: dev-1

A setting has the same name as a flag, as a field of a context and as a variable: the flag
--storage-bucket, the field storage_bucket and the variable NSTANCE_ADMIN_STORAGE_BUCKET.
A flag takes precedence over a variable, and a variable over the current context. A prefix,
a region or a cluster's ID from a context or a variable does not apply to a bucket that a
flag names; so it is with "secrets" and "key". To use another context for one command, set
NSTANCE_ADMIN_CONTEXT.

No setting is a secret. A key is named by its place: a variable, a file, or an entry of a
secrets manager.

These are the fields of a context:

` + settingsText()}
	cmd.AddCommand(a.contextListCommand(), a.contextUseCommand(), a.contextShowCommand(), a.contextImportCommand())
	return cmd
}

// settingsText lists the fields of a context.
func settingsText() string {
	var text strings.Builder
	for _, s := range contexts.Settings() {
		text.WriteString("  " + s.Field() + "\n")
	}
	return strings.TrimSuffix(text.String(), "\n")
}

// listedContext is one context in the output of `context list`.
type listedContext struct {
	Name     string           `json:"name"`
	Current  bool             `json:"current,omitempty"`
	Settings contexts.Context `json:"settings"`
}

func (a *app) contextListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the contexts", Args: cobra.NoArgs,
		Example: "  nstance-admin context list"}
	f := outputFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		file, err := a.readContexts()
		if err != nil {
			return err
		}
		listed := []listedContext{}
		for _, name := range slices.Sorted(maps.Keys(file.Contexts)) {
			listed = append(listed, listedContext{name, name == cmp.Or(a.Getenv(envContext), file.Current),
				file.Contexts[name]})
		}
		return showAll(a, *f, map[string]any{"contexts": listed}, listed,
			"There are no contexts; nstance-admin context --help shows how to write some.",
			[]string{"", "CONTEXT", "SERVERS", "BUCKET", "IDENTITY", "SHARD"}, func(c listedContext) []cell {
				return plain(map[bool]string{true: "*"}[c.Current], c.Name, c.Settings["servers"],
					c.Settings["storage_bucket"], c.Settings["identity_dir"], c.Settings["shard"])
			})
	}
	return cmd
}

func (a *app) contextUseCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "use CONTEXT", Short: "Choose a context", Args: cobra.ExactArgs(1),
		Example: "  nstance-admin context use prod"}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		file, err := a.contextsWith(args[0])
		if err != nil {
			return err
		}
		file.Current = args[0]
		if err := a.writeContexts(file); err != nil {
			return err
		}
		return a.line("Context %s is in use.", args[0])
	}
	return cmd
}

// contextsWith reads the file with the contexts, which must have the named one.
func (a *app) contextsWith(name string) (contexts.File, error) {
	file, err := a.readContexts()
	if _, ok := file.Contexts[name]; ok || err != nil {
		return file, err
	}
	if len(file.Contexts) == 0 {
		return file, withHint(fmt.Errorf("there is no context %q, and no other", name),
			"nstance-admin context --help shows how to write one, and context import reads one from Terraform")
	}
	return file, withHint(fmt.Errorf("there is no context %q", name), "%s",
		near(name, slices.Sorted(maps.Keys(file.Contexts))))
}

// shownSetting is one setting in the output of `context show`.
type shownSetting struct {
	Setting  string `json:"setting"`
	Value    string `json:"value"`
	From     string `json:"from"`
	Variable string `json:"variable"`
}

func (a *app) contextShowCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "show [CONTEXT]", Short: "Show the settings in force, and where each comes from",
		Args: cobra.MaximumNArgs(1),
		Long: `Shows the settings that other commands would use, and where each value comes from: a flag,
a variable, the context or the program's default. With CONTEXT, that context counts as the
one in use. The table leaves out settings without a value.`,
		Example: `  nstance-admin context show
  nstance-admin context show prod --output json`}
	f := outputFlag(cmd)
	new(secretFlags).add(cmd)
	s := new(scope)
	s.reach(cmd)
	cmd.Flags().StringVar(&s.shard, "shard", "", "the shard to ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			if _, err := a.contextsWith(args[0]); err != nil {
				return err
			}
			getenv := a.Getenv
			a.Getenv = func(name string) string {
				if name == envContext {
					return args[0]
				}
				return getenv(name)
			}
		}
		found, err := a.settings(cmd)
		if err != nil {
			return err
		}
		shown, rows := []shownSetting{}, []shownSetting{}
		for _, one := range found {
			row := shownSetting{one.Flag, one.value, cmp.Or(one.from, "default"), one.Variable()}
			shown = append(shown, row)
			if one.value != "" && !(one.precedence == byDefault && one.value == "false") {
				rows = append(rows, row)
			}
		}
		return a.show(*f, map[string]any{"settings": shown}, func(w io.Writer) error {
			return a.table(w, []string{"SETTING", "VALUE", "FROM"}, rowsOf(rows, func(s shownSetting) []cell {
				return plain(s.Setting, s.Value, s.From)
			}))
		})
	}
	return cmd
}

func (a *app) contextImportCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "import FILE|-", Short: "Add contexts from a file, such as Terraform's output",
		Args: cobra.ExactArgs(1),
		Long: `Adds the contexts in a file, and uses the one that the file names as current. The file
has the form of the file with the contexts, in YAML or JSON. The data source
nstance_admin_context of the Terraform provider makes it, and the modules have it as the
output admin_context.

If there is a context of the same name, the fields in the imported file replace those of
the context, and an empty field removes one. The other fields stay. A context without
identity_dir gets the directory "identities/CONTEXT" beside the file with the contexts.`,
		Example: `  tofu output -raw admin_context | nstance-admin context import -
  nstance-admin cluster register-operator
  nstance-admin status`}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		from := map[bool]string{true: "standard input", false: args[0]}[args[0] == "-"]
		text, err := a.readInput(args[0], config.MaxSize)
		if err != nil {
			return fmt.Errorf("read contexts: %w", err)
		}
		imported, err := parseContexts(text)
		if err != nil {
			return withHint(fmt.Errorf("%s: %w", from, err), "nstance-admin context --help shows the form of the file")
		}
		if len(imported.Contexts) == 0 {
			return withHint(fmt.Errorf("%s has no contexts", from),
				"nstance-admin context --help shows the form of the file")
		}
		file, err := a.readContexts()
		if err != nil {
			return err
		}
		file.Merge(imported)
		file.Current = cmp.Or(imported.Current, file.Current)
		names := slices.Sorted(maps.Keys(imported.Contexts))
		for _, name := range names {
			if fields := file.Contexts[name]; fields["identity_dir"] == "" {
				fields["identity_dir"] = filepath.Join(filepath.Dir(a.contextPath()), "identities", name)
			}
		}
		if err := a.writeContexts(file); err != nil {
			return err
		}
		for _, name := range names {
			used := map[bool]string{true: ", which is in use", false: ""}[name == file.Current]
			if err := a.line("Imported context %s%s.", name, used); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// completionTime is the time limit for all calls to servers during one shell completion.
const completionTime = 3 * time.Second

// complete adds shell completion for the names of shards, groups, instances and contexts to all commands that take
// them.
func (a *app) complete(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		a.complete(sub)
	}
	const no = cobra.ShellCompDirectiveNoFileComp
	ofShards := func(cmd *cobra.Command) []string {
		_ = a.settle(cmd) // without settings nothing completes
		return shardNames(flagText(cmd, "servers"))
	}
	for flag, names := range map[string]func(*cobra.Command) []string{"shard": ofShards, "group": a.groupNames} {
		if cmd.Flag(flag) != nil {
			// This call fails only if the flag already has a completion function.
			_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string,
				cobra.ShellCompDirective) {
				return names(cmd), no
			})
		}
	}
	names := map[string]func(*cobra.Command) []string{"GROUP": a.groupNames, "[GROUP]": a.groupNames,
		"INSTANCE": a.instanceNames, "CONTEXT": a.contextNames, "[CONTEXT]": a.contextNames}[firstArgument(cmd)]
	if names == nil {
		return
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, no
		}
		return names(cmd), no
	}
}

// firstArgument returns the name of a command's first argument.
func firstArgument(cmd *cobra.Command) string {
	if fields := strings.Fields(cmd.Use); len(fields) > 1 {
		return fields[1]
	}
	return ""
}

func flagText(cmd *cobra.Command, name string) string {
	if flag := cmd.Flag(name); flag != nil {
		return flag.Value.String()
	}
	return ""
}

func shardNames(servers string) []string {
	known, _ := endpoints.Parse(servers) // none if it is wrong
	return namesOf(known)
}

func namesOf(shards []endpoints.Shard) (names []string) {
	for _, shard := range shards {
		names = append(names, shard.Name)
	}
	return names
}

// withShards calls `do` for the shards that the command line selects so far. If the command line selects none,
// withShards passes all known shards.
func (a *app) withShards(cmd *cobra.Command, do func(context.Context, *fleet.Fleet, []string)) {
	_ = a.settle(cmd) // without settings nothing completes
	s := scopeOf(cmd)
	s.timeout = completionTime
	f, err := a.fleet(s)
	if err != nil {
		return
	}
	defer f.Close()
	shards, err := a.shards(s, f)
	if err != nil {
		shards = f.Shards()
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	do(ctx, f, shards)
}

func (a *app) groupNames(cmd *cobra.Command) (names []string) {
	a.withShards(cmd, func(ctx context.Context, f *fleet.Fleet, shards []string) {
		for _, answer := range fleet.Call(ctx, f, shards, fleet.Client.ListGroups, &nstancev1.ListGroupsRequest{}) {
			for _, g := range answer.Message.GetGroups() {
				names = append(names, g.GetGroup())
			}
		}
	})
	slices.Sort(names)
	return slices.Compact(names)
}

func (a *app) instanceNames(cmd *cobra.Command) (names []string) {
	a.withShards(cmd, func(ctx context.Context, f *fleet.Fleet, shards []string) {
		for _, answer := range fleet.Call(ctx, f, shards, fleet.Client.ListInstances,
			&nstancev1.ListInstancesRequest{}) {
			for _, i := range answer.Message.GetInstances() {
				names = append(names, i.GetInstanceId()+"\t"+i.GetGroup()+" "+i.GetHealth())
			}
		}
	})
	slices.Sort(names)
	return slices.Compact(names)
}

func (a *app) contextNames(*cobra.Command) []string {
	file, _ := a.readContexts() // without a file nothing completes
	return slices.Sorted(maps.Keys(file.Contexts))
}
