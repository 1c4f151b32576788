package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/agent/machine"
)

const (
	// roleFile is the name of a file in the folder of received files. It has the instance's role in one word.
	roleFile = "role"
	// roleStateFile is the name of a file in the identity folder that has the [roleState].
	roleStateFile = "role.json"
)

// roleState is what the agent stores about its role.
type roleState struct {
	// Instance is the instance whose role it is. The disk may be a copy of another VM's disk.
	Instance string `json:"instance"`
	Role     string `json:"role"`
	// Taken means that the hook has run for the role.
	Taken bool `json:"taken"`
}

var roleNames = map[nstancev1.InstanceRole]string{nstancev1.InstanceRole_INSTANCE_ROLE_SPARE: "spare",
	nstancev1.InstanceRole_INSTANCE_ROLE_MEMBER: "member"}

// tell takes a role from the server. Only the last one counts that runRole has not taken yet.
func (c *Client) tell(role nstancev1.InstanceRole) {
	if roleNames[role] == "" {
		return // of a newer server
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.told:
	default:
	}
	c.told <- role // does not block: only tell sends
}

// runRole takes the roles that the server tells: it writes the role into a file, starts or stops the unit, starts the
// health checks again, and runs the hook. Then it reports the role. A member never becomes a spare again, because a
// server that says so has an outdated record.
//
// The VM of a spare may sleep. When it has woken, runRole ends the session, because its connection may be dead.
func (c *Client) runRole(ctx context.Context) error {
	role := c.loadRole(ctx)
	var woken <-chan struct{}
	for {
		if role == nstancev1.InstanceRole_INSTANCE_ROLE_SPARE && woken == nil && c.Wakes != nil {
			woken = c.Wakes(ctx) // also later: it becomes a member while it wakes
		}
		var next nstancev1.InstanceRole
		select {
		case <-ctx.Done():
			return ctx.Err()
		case next = <-c.told:
		case <-woken:
			c.Log.Info("The machine has woken: connecting again")
			nudge(c.woken)
			nudge(c.wake)
			continue
		}
		switch {
		case next == role:
			continue
		case role == nstancev1.InstanceRole_INSTANCE_ROLE_MEMBER:
			c.Log.Warn("A server calls this instance a spare, but it is a member: ignored")
			continue
		}
		if err := c.takeRole(ctx, next, role != nstancev1.InstanceRole_INSTANCE_ROLE_UNSPECIFIED); err != nil {
			return err
		}
		role = next
	}
}

// takeRole takes a role. change means that the instance had another one.
func (c *Client) takeRole(ctx context.Context, role nstancev1.InstanceRole, change bool) error {
	name, began := roleNames[role], time.Now()
	c.storeRole(name, false)
	if err := c.Files.Write(roleFile, []byte(name+"\n"), c.FilesMode); err != nil {
		c.Log.Error("The role was not written into its file", "role", name, "error", err)
	}
	c.setMember(ctx, role)
	if change && c.checks != nil {
		c.checks.Restart()
	}
	if c.Hook != nil {
		c.hooking.Lock()
		err := c.Hook(ctx, []string{roleFile})
		c.hooking.Unlock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		remark := ""
		if err != nil {
			remark = fmt.Sprintf("hook for the role %s: %v", name, err)
			c.Log.Error("The hook failed", "role", name, "error", err)
		}
		c.update(func(s *standing) { s.remark = remark })
	}
	c.storeRole(name, true)
	c.Log.Info("The role was taken", "role", name, "duration", time.Since(began))
	c.update(func(s *standing) { s.role, s.changed = role, true })
	return nil
}

// setMember starts the unit of members, or stops it.
func (c *Client) setMember(ctx context.Context, role nstancev1.InstanceRole) {
	if c.Member == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch err := c.Member(ctx, role == nstancev1.InstanceRole_INSTANCE_ROLE_MEMBER); {
	case errors.Is(err, machine.ErrNoSystemd):
		c.Log.Info("The unit of members is left out", "role", roleNames[role], "error", err)
	case err != nil:
		c.Log.Warn("The unit of members was not changed", "role", roleNames[role], "error", err)
	}
}

func (c *Client) storeRole(name string, taken bool) {
	if err := c.storeState(roleStateFile, roleState{Instance: c.ID.String(), Role: name, Taken: taken}); err != nil {
		c.Log.Error("The role was not stored: a restarted agent waits for the server to tell it", "error", err)
	}
}

// loadRole returns the role that an earlier process of this agent has taken. If that process did not finish, loadRole
// has the role taken again. The unit may have been stopped meanwhile by a restart of the machine.
func (c *Client) loadRole(ctx context.Context) nstancev1.InstanceRole {
	const unknown = nstancev1.InstanceRole_INSTANCE_ROLE_UNSPECIFIED
	text, err := c.Identity.Read(roleStateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return unknown
	}
	var state roleState
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil {
		c.Log.Error("The stored role cannot be used", "error", err)
		return unknown
	}
	for role, name := range roleNames {
		switch {
		case name != state.Role || state.Instance != c.ID.String():
		case state.Taken:
			c.setMember(ctx, role)
			c.update(func(s *standing) { s.role = role })
			return role
		default:
			c.tell(role)
		}
	}
	return unknown
}
