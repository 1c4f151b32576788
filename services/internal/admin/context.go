package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// savedContext holds the defaults of flags for one cluster. Flags and environment variables take precedence.
type savedContext struct {
	Servers     string `json:"servers,omitempty"`
	IdentityDir string `json:"identity_dir,omitempty"`
	Shard       string `json:"shard,omitempty"`
}

// contextFile is the content of ~/.config/nstance/config.yaml.
type contextFile struct {
	Current  string                  `json:"current,omitempty"`
	Contexts map[string]savedContext `json:"contexts,omitempty"`
}

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
func (a *app) readContexts() (contextFile, error) {
	path := a.contextPath()
	if path == "" {
		return contextFile{}, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return contextFile{}, nil
	}
	if err != nil {
		return contextFile{}, fmt.Errorf("read contexts: %w", err)
	}
	var file contextFile
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return contextFile{}, withHint(fmt.Errorf("read contexts: %s: %w", path, err),
			"docs/reference/admin-other.md shows the form of the file")
	}
	return file, nil
}

// currentContext returns the context in use, or an empty one.
func (a *app) currentContext() (savedContext, error) {
	file, err := a.readContexts()
	if err != nil {
		return savedContext{}, err
	}
	name := cmp.Or(a.Getenv(envContext), file.Current)
	if name == "" {
		return savedContext{}, nil
	}
	saved, ok := file.Contexts[name]
	if !ok {
		return savedContext{}, withHint(fmt.Errorf("there is no context %q in %s", name, a.contextPath()),
			"nstance-admin context list shows those that exist")
	}
	return saved, nil
}

func (a *app) contextCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "context", Short: "Choose the cluster that commands talk to",
		Long: `A context has the settings for one cluster. The file with the contexts is
$XDG_CONFIG_HOME/nstance/config.yaml, by default ~/.config/nstance/config.yaml:

  current: prod
  contexts:
    prod:
      servers: us-west-2a=10.0.0.100:8993,us-west-2b=10.0.1.100:8993
      identity_dir: /home/alice/.nstance/prod
    dev:
      servers: dev-1=127.0.0.1:8993
      identity_dir: /home/alice/.nstance/dev
      shard: dev-1

Flags and environment variables override the settings of the current context. To use
another context for one command of nstance-admin, set NSTANCE_ADMIN_CONTEXT.`}
	cmd.AddCommand(a.contextListCommand(), a.contextUseCommand())
	return cmd
}

// listedContext is one context in the output of `context list`.
type listedContext struct {
	Name    string `json:"name"`
	Current bool   `json:"current,omitempty"`
	savedContext
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
			[]string{"", "CONTEXT", "SERVERS", "IDENTITY", "SHARD"}, func(c listedContext) []cell {
				return plain(map[bool]string{true: "*"}[c.Current], c.Name, c.Servers, c.IdentityDir, c.Shard)
			})
	}
	return cmd
}

func (a *app) contextUseCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "use CONTEXT", Short: "Choose a context", Args: cobra.ExactArgs(1),
		Example: "  nstance-admin context use prod"}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		file, err := a.readContexts()
		if err != nil {
			return err
		}
		if len(file.Contexts) == 0 {
			return withHint(fmt.Errorf("there is no context %q, and no other", args[0]),
				"nstance-admin context --help shows how to write one")
		}
		if _, ok := file.Contexts[args[0]]; !ok {
			return withHint(fmt.Errorf("there is no context %q", args[0]), "%s",
				near(args[0], slices.Sorted(maps.Keys(file.Contexts))))
		}
		file.Current = args[0]
		text, err := yaml.Marshal(file)
		if err != nil {
			return fmt.Errorf("write contexts: %w", err)
		}
		if err := renameio.WriteFile(a.contextPath(), text, 0o600); err != nil {
			return fmt.Errorf("write contexts: %w", err)
		}
		return a.line("Context %s is in use.", args[0])
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
	if cmd.Flag("shard") != nil {
		// This call fails only if the flag already has a completion function.
		_ = cmd.RegisterFlagCompletionFunc("shard", func(cmd *cobra.Command, _ []string, _ string) ([]string,
			cobra.ShellCompDirective) {
			return a.shardNames(flagText(cmd, "servers")), no
		})
	}
	if cmd.Flag("group") != nil {
		_ = cmd.RegisterFlagCompletionFunc("group", func(cmd *cobra.Command, _ []string, _ string) ([]string,
			cobra.ShellCompDirective) {
			return a.groupNames(cmd), no
		})
	}
	names := map[string]func(*cobra.Command) []string{"GROUP": a.groupNames, "[GROUP]": a.groupNames,
		"INSTANCE": a.instanceNames, "CONTEXT": a.contextNames}[firstArgument(cmd)]
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

func (a *app) shardNames(servers string) (names []string) {
	saved, err := a.currentContext()
	if err != nil {
		return nil
	}
	known, err := endpoints.Parse(cmp.Or(servers, a.Getenv(envServers), saved.Servers))
	if err != nil {
		return nil
	}
	for _, shard := range known {
		names = append(names, shard.Name)
	}
	return names
}

// withShards calls `do` for the shards that the command line selects so far. If the command line selects none,
// withShards passes all known shards.
func (a *app) withShards(cmd *cobra.Command, do func(context.Context, *fleet.Fleet, []string)) {
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

func (a *app) contextNames(*cobra.Command) (names []string) {
	file, _ := a.readContexts() // without a file nothing completes
	for name := range file.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
