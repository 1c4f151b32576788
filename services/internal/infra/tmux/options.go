package tmux

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Options are `server.provider.options` of a shard whose provider is tmux.
type Options struct {
	// Dir is the state directory, default temp/agents. Servers of a shard share it.
	Dir string
	// Session is the tmux session, default nstance-dev-agents.
	Session string
	// Socket names the tmux server (tmux -L), or is the path of its socket (tmux -S) if it has a slash. Empty: the
	// default server.
	Socket string
	// Agent is the nstance-agent binary. Empty: next to this program, in ./bin, or on PATH.
	Agent string
	// Command is run by sh in this program's working directory instead of Agent, such as "air -c
	// scripts/air/agent.toml".
	Command string
	// NodesDir, if set, gets a Kubernetes Node document for each VM: {NodesDir}/{instance ID}.json.
	NodesDir string
}

// tmux itself replaces dots and colons in session names.
var sessionName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// ParseOptions reads and checks the options without looking at the machine, and fills in defaults. All problems are
// reported.
func ParseOptions(raw map[string]string) (Options, error) {
	o := Options{Dir: "temp/agents", Session: "nstance-dev-agents"}
	fields := map[string]*string{
		"dir": &o.Dir, "session": &o.Session, "socket": &o.Socket, "agent": &o.Agent, "command": &o.Command,
		"nodes_dir": &o.NodesDir,
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		field, ok := fields[name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("unknown option %q; there are %s", name,
				strings.Join(slices.Sorted(maps.Keys(fields)), ", ")))
		case strings.ContainsAny(raw[name], "\x00\n"):
			errs = append(errs, fmt.Errorf("option %q holds a line break or a NUL", name))
		default:
			*field = raw[name]
		}
	}
	if o.Dir == "" {
		errs = append(errs, errors.New(`option "dir" is empty`))
	}
	if !sessionName.MatchString(o.Session) {
		errs = append(errs, fmt.Errorf("option \"session\": %q is no session name (%s)", o.Session, sessionName))
	}
	if o.Agent != "" && o.Command != "" {
		errs = append(errs, errors.New(`options "agent" and "command" exclude each other`))
	}
	return o, errors.Join(errs...)
}

// resolve makes paths absolute and finds the agent.
func (o *Options) resolve() error {
	for _, path := range []*string{&o.Dir, &o.NodesDir, &o.Socket} {
		if *path == "" || path == &o.Socket && !strings.Contains(o.Socket, "/") {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("tmux provider: %w", err)
		}
		*path = abs
	}
	if o.Command != "" {
		return nil
	}
	candidates := []string{o.Agent}
	if o.Agent == "" {
		candidates = []string{filepath.Join("bin", "nstance-agent"), "nstance-agent"}
		if self, err := os.Executable(); err == nil {
			candidates = slices.Insert(candidates, 0, filepath.Join(filepath.Dir(self), "nstance-agent"))
		}
	}
	for _, path := range candidates {
		found, err := exec.LookPath(path)
		if err != nil {
			continue
		}
		if found, err = filepath.Abs(found); err == nil {
			o.Agent = found
			return nil
		}
	}
	return fmt.Errorf("tmux provider: no nstance-agent at %s: build it, or set the option \"agent\"",
		strings.Join(candidates, ", "))
}
