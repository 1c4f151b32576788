// Package tmux describes the development cloud to the shard configuration: every VM is a window of a tmux session.
package tmux

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/cloud"
)

// Name is the cloud's name.
const Name = "tmux"

// Block describes the cloud.
var Block = cloud.Block{Name: Name, Hidden: true, HasImages: true, Sleeps: []string{"suspended"},
	LeaderNetworkKinds: []string{cloud.LeaderARP},
	CheckOptions:       cloud.Check(ParseOptions), CheckArgs: cloud.Check(ParseArgs)}

// variableName matches the names of environment variables (POSIX.1-2017, 8.1).
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// ParseArgs returns the environment variables that the arg `env`, a map of strings, adds to a VM. It reports all
// problems. It ignores other args, so that the args of another cloud's template can be used unchanged.
func ParseArgs(args map[string]any) (env map[string]string, found []cloud.Problem) {
	report := func(message string, path ...any) {
		found = append(found, cloud.Problem{Path: path, Message: message})
	}
	if args["env"] == nil {
		return nil, found
	}
	vars, ok := args["env"].(map[string]any)
	if !ok {
		report("is not a map of strings", "env")
	}
	env = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		value, ok := vars[name].(string)
		if !ok || !variableName.MatchString(name) || strings.Contains(value, "\x00") {
			report("is not an environment variable with a string", "env", name)
		}
		env[name] = value
	}
	return env, found
}

// Options are server.provider.options.
type Options struct {
	// Dir is the state directory, default temp/agents. All servers of a shard share it.
	Dir string
	// Session is the tmux session, default nstance-dev-agents.
	Session string
	// Socket is the name of the tmux server (tmux -L). A value with a slash is the path of the server's socket instead
	// (tmux -S). Empty: the default server.
	Socket string
	// Agent is the nstance-agent binary. If it is empty, the binary is looked up next to this program, in ./bin and on
	// PATH.
	Agent string
	// Command is a shell command that runs instead of the agent binary, such as "air -c scripts/air/agent.toml". It
	// runs in this program's working directory.
	Command string
	// NodesDir is a directory for a Kubernetes Node document of each VM, {instance ID}.json. If it is empty, none are
	// written.
	NodesDir string
	// MaxVMs is the maximum number of VMs in Dir. With that many VMs, a create call fails with the error of a cloud
	// that lacks capacity. 0: no limit.
	MaxVMs int
}

// sessionName matches names that tmux does not change. tmux replaces dots and colons.
var sessionName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// ParseOptions parses the options and fills in defaults. It accesses no files or processes, and reports all problems.
func ParseOptions(raw map[string]string) (Options, []cloud.Problem) {
	o := Options{Dir: "temp/agents", Session: "nstance-dev-agents"}
	maxVMs := "0"
	fields := map[string]cloud.Field[string]{}
	for name, into := range map[string]*string{
		"dir": &o.Dir, "session": &o.Session, "socket": &o.Socket, "agent": &o.Agent, "command": &o.Command,
		"nodes_dir": &o.NodesDir, "max_vms": &maxVMs,
	} {
		fields[name] = cloud.Field[string]{Parse: func(text string) error {
			if strings.ContainsAny(text, "\x00\n") {
				return errors.New("holds a line break or a NUL")
			}
			*into = text
			return nil
		}}
	}
	found := cloud.ParseFields(raw, "provider tmux has no such option", fields)
	report := func(option, format string, args ...any) {
		found = append(found, cloud.Problem{Path: []any{option}, Message: fmt.Sprintf(format, args...)})
	}
	n, err := strconv.ParseUint(maxVMs, 10, 16)
	if o.MaxVMs = int(n); err != nil {
		report("max_vms", "%q is not a number of VMs", maxVMs)
	}
	if o.Dir == "" {
		report("dir", "is empty")
	}
	if !sessionName.MatchString(o.Session) {
		report("session", "%q is not a session name (%s)", o.Session, sessionName)
	}
	if o.Agent != "" && o.Command != "" {
		report("agent", "cannot be set beside command")
	}
	return o, found
}
