package admin

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
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
			"docs/reference/admin.md shows the form of the file")
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
		if _, ok := file.Contexts[args[0]]; !ok {
			return withHint(fmt.Errorf("there is no context %q", args[0]), "there are: %s",
				cmp.Or(list(slices.Sorted(maps.Keys(file.Contexts))), "none"))
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
