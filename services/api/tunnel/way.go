// Package tunnel connects to servers that this machine cannot reach directly: through a forwarded port, SSH, or a
// session of the user's own cloud tools.
//
// Invariants:
//   - A tunnel only carries bytes. The caller verifies the server at its end, by the name in the original address.
//   - No text passes through a shell.
package tunnel

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/suggest"
)

// Way is how to reach the servers of a shard. The zero Way connects directly.
type Way struct {
	// kind is a name in kinds, or "" for the forwarded port at the address in target.
	kind, target string
}

// kind is a kind of way that runs a program.
type kind struct {
	// target is a word for the target, and form describes it for messages.
	target, form string
	pattern      *regexp.Regexp
	// command returns the command line that connects to a server's host and port. target has what pattern matched.
	command func(target []string, host, port string) []string
	// opened matches the line in which the program names the port that it has opened on this machine. It is nil if the
	// program forwards its standard input and output instead.
	opened *regexp.Regexp
	env    []string // additional environment variables
	// asks reports whether the program asks the user for passwords on the terminal.
	asks bool
	// install says what to do if the program is missing, and advice if it fails.
	install, advice string
}

var kinds = func() map[string]kind {
	all := map[string]kind{"ssh": {
		target: "HOST",
		form:   "HOST, USER@HOST or USER@HOST:PORT",
		pattern: regexp.MustCompile(`^(?:[A-Za-z0-9._][A-Za-z0-9._-]*@)?` +
			`(?:[A-Za-z0-9._][A-Za-z0-9._-]*|\[[0-9a-f:]+\])(?::[0-9]{1,5})?$`),
		command: func(target []string, host, port string) []string {
			to := target[0]
			if _, _, err := net.SplitHostPort(to); err == nil {
				to = "ssh://" + to
			}
			// As the master of other connections, ssh would live on after this one.
			return []string{"ssh", "-o", "ControlMaster=no", "-W", net.JoinHostPort(host, port), "--", to}
		},
		asks:    true,
		install: "install the client of OpenSSH",
		advice:  "does `ssh HOST` work, and may HOST connect to the server's address?",
	}}
	maps.Copy(all, clouds)
	return all
}()

// Forms lists the forms of a way.
var Forms = func() string {
	var forms []string
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		forms = append(forms, name+":"+kinds[name].target)
	}
	return "host:port, " + strings.Join(forms[:len(forms)-1], ", ") + " or " + forms[len(forms)-1]
}()

// ParseWay reads a way: host:port of a forwarded port, or the name of a kind, a colon, and a target.
func ParseWay(text string) (Way, error) {
	name, target, _ := strings.Cut(text, ":")
	if known, ok := kinds[name]; ok {
		if !known.pattern.MatchString(target) {
			return Way{}, fmt.Errorf("%q: want %s:%s", text, name, known.form)
		}
		return Way{name, target}, nil
	}
	addrs, err := endpoints.ParseAddrs(text)
	if err != nil || len(addrs) != 1 {
		problem := fmt.Sprintf("%q is no way to a server: want %s", text, Forms)
		if near := suggest.Nearest(name, slices.Sorted(maps.Keys(kinds))); near != "" {
			problem += fmt.Sprintf("; did you mean %q?", near+":"+target)
		}
		return Way{}, errors.New(problem)
	}
	return Way{"", addrs[0]}, nil
}

// Parse reads `SHARD=WAY,…`.
func Parse(text string) (map[string]Way, error) {
	ways := map[string]Way{}
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		shard, text, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("%q: want shard=WAY, and a WAY is %s", part, Forms)
		}
		if err := ident.ValidateName(shard); err != nil {
			return nil, fmt.Errorf("%q: shard: %w", part, err)
		}
		if _, twice := ways[shard]; twice {
			return nil, fmt.Errorf("%q: there is another way to shard %s", part, shard)
		}
		way, err := ParseWay(text)
		if err != nil {
			return nil, fmt.Errorf("shard %s: %w", shard, err)
		}
		ways[shard] = way
	}
	return ways, nil
}

// String returns the way as ParseWay reads it.
func (w Way) String() string {
	if w.kind == "" {
		return w.target
	}
	return w.kind + ":" + w.target
}

// IsZero reports whether the way connects directly.
func (w Way) IsZero() bool { return w == Way{} }

// Error means that a tunnel carries no bytes, or carries none any more.
type Error struct {
	Way Way
	// Reason says why. It may have the last lines that the program printed.
	Reason string
	// Advice says what to do.
	Advice string
}

func (e *Error) Error() string { return "via " + e.Way.String() + ": " + e.Reason }
