package peer

import (
	"context"
	"fmt"

	"google.golang.org/grpc/metadata"

	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
)

// A leader that must restart for a new configuration first asks its standbys to do so. These messages are no part of
// the election: a message that is lost only makes the leader wait longer.

// configHeader is the header of a link with the version of the configuration with which the follower runs. A server of
// a version that cannot be asked to restart does not send it.
const configHeader = "nstance-config-bin"

// maxRefusal is the maximum length of a refusal's reason, in bytes.
const maxRefusal = 4 << 10

// restart asks a standby to restart with a version of the configuration.
type restart struct{ Version string }

// refusal answers restart: the standby cannot run with that version.
type refusal struct{ Version, Reason string }

func (r restart) validate() error { return validateVersion(r.Version) }

func (r refusal) validate() error {
	if len(r.Reason) > maxRefusal {
		return fmt.Errorf("the reason of a refusal has %d bytes, want at most %d", len(r.Reason), maxRefusal)
	}
	return validateVersion(r.Version)
}

func validateVersion(version string) error {
	if version == "" || len(version) > maxName {
		return fmt.Errorf("a version of the configuration has %d bytes, want 1 to %d", len(version), maxName)
	}
	return nil
}

// Standby is a server that is connected to this one.
type Standby struct {
	election.Peer
	// Restarts means that the server restarts when it is asked to. Config is then the version of the configuration with
	// which it runs. Servers of earlier versions of Nstance tell neither.
	Restarts bool
	Config   string
	// RefusedVersion is the version of the configuration with which the server cannot run, and Refusal says why.
	RefusedVersion, Refusal string
}

// Standbys returns the servers that are connected to this one.
func (n *Network) Standbys() []Standby {
	n.mu.Lock()
	defer n.mu.Unlock()
	var standbys []Standby
	for _, l := range n.links {
		if l.incoming {
			standbys = append(standbys, l.standby)
		}
	}
	return standbys
}

// AskRestart asks a connected server to restart with a version of the configuration.
func (n *Network) AskRestart(to election.Peer, version string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.links[end{to, true}]; l != nil {
		l.send(restart{version})
	}
}

// tellConfig returns a context for a new link that tells the other server with which configuration this one runs.
func (n *Network) tellConfig(ctx context.Context) context.Context {
	if n.options.Config == nil {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, configHeader, n.options.Config())
}

// standbyOf describes the follower of a new link.
func standbyOf(ctx context.Context, from election.Peer) Standby {
	standby := Standby{Peer: from}
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		if version := md.Get(configHeader); len(version) == 1 && len(version[0]) <= maxName {
			standby.Restarts, standby.Config = true, version[0]
		}
	}
	return standby
}

// receiveRestart handles a leader's request to restart. It returns false if the sender is not the leader.
func (n *Network) receiveRestart(l *link, m restart) bool {
	if l.incoming {
		return false
	}
	if n.options.Restart != nil {
		go func() {
			if reason := n.options.Restart(m.Version); reason != "" {
				l.send(refusal{m.Version, reason[:min(len(reason), maxRefusal)]})
			}
		}()
	}
	return true
}

// receiveRefusal records a standby's refusal. It returns false if the sender is not a standby.
func (n *Network) receiveRefusal(l *link, m refusal) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	l.standby.RefusedVersion, l.standby.Refusal = m.Version, m.Reason
	return l.incoming
}
