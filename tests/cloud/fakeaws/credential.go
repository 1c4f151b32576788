package fakeaws

import (
	"crypto/rand"
	"encoding/base32"
	"regexp"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/auth"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/sts"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// sessionLength is how long a role's credentials are good when nobody asks for less: what an instance profile gives.
const sessionLength = 6 * time.Hour

// renewal is how long before the end of a session its instance is given the next one.
const renewal = 15 * time.Minute

// issued is a key and who has it.
type issued struct {
	auth.Key
	principal wire.Principal
}

// keyring holds all keys, by access key ID.
type keyring struct {
	root     string // access key ID of the account itself
	keys     map[string]issued
	profiles map[[2]string]sts.Credentials // the newest of each role and instance
}

func newKeyring() keyring {
	k := keyring{root: "AKIA" + random(10), keys: map[string]issued{}, profiles: map[[2]string]sts.Credentials{}}
	k.keys[k.root] = issued{
		Key:       auth.Key{Secret: random(25)},
		principal: wire.Principal{ARN: "arn:aws:iam::" + Account + ":root", Account: Account, UserID: Account},
	}
	return k
}

// random is n random bytes as capital letters and digits, like an access key ID.
func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b)
}

// Credentials are the account's own: they may do anything.
func (c *Cloud) Credentials() (access, secret string) {
	return c.keys.root, c.keys.keys[c.keys.root].Secret
}

// RoleCredentials are a new session's, as an instance profile would get them when session is an instance's ID. Nothing
// checks that the role trusts anybody. They are good for six hours, and for as long as the role exists.
func (c *Cloud) RoleCredentials(role, session string) (access, secret, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.issue(role, session, sessionLength)
	return s.Access, s.Secret, s.Token
}

// ExpireSessions ends all sessions of a role now.
func (c *Cloud) ExpireSessions(role string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, key := range c.keys.keys {
		if key.principal.Role == role {
			key.Expires = c.cfg.Now()
			c.keys.keys[id] = key
		}
	}
}

// profile is a session as an instance's metadata gives it: the same until it is soon over. The lock is held.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html
func (c *Cloud) profile(role, instance string) sts.Credentials {
	name := [2]string{role, instance}
	s := c.keys.profiles[name]
	if c.keys.keys[s.Access].Expires.Sub(c.cfg.Now()) < renewal {
		s = c.issue(role, instance, sessionLength)
		c.keys.profiles[name] = s
	}
	return s
}

var instanceForm = regexp.MustCompile(`^i-[0-9a-f]+$`)

// issue makes a session, with the lock held.
func (c *Cloud) issue(role, session string, lasts time.Duration) sts.Credentials {
	p := wire.Principal{ARN: "arn:aws:sts::" + Account + ":assumed-role/" + role + "/" + session, Account: Account,
		Role: role, Session: session}
	if instanceForm.MatchString(session) {
		p.SourceInstance = "arn:aws:ec2:" + c.cfg.Region + ":" + Account + ":instance/" + session
	}
	s := sts.Credentials{Access: "ASIA" + random(10), Secret: random(25), Token: random(120),
		Expires: c.cfg.Now().Add(lasts)}
	c.keys.keys[s.Access] = issued{Key: auth.Key{Secret: s.Secret, Token: s.Token, Expires: s.Expires}, principal: p}
	return s
}
