package fakeaws

import (
	"crypto/rand"
	"encoding/base32"
	"regexp"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/auth"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// sessionLength is the lifetime of a role's credentials.
const sessionLength = 6 * time.Hour

// renewal is the remaining lifetime below which the metadata service replaces credentials.
const renewal = 15 * time.Minute

// issued is an access key and its principal.
type issued struct {
	auth.Key
	principal wire.Principal
}

// keyring holds all access keys.
type keyring struct {
	root     string                        // access key ID of the account
	observer string                        // access key ID of the account for tests that look at it
	keys     map[string]issued             // by access key ID
	profiles map[[2]string]ec2.Credentials // newest credentials by role and instance
}

func newKeyring() keyring {
	k := keyring{root: "AKIA" + random(10), observer: "AKIA" + random(10), keys: map[string]issued{},
		profiles: map[[2]string]ec2.Credentials{}}
	for _, id := range []string{k.root, k.observer} {
		k.keys[id] = issued{Key: auth.Key{Secret: random(25)}, principal: wire.Principal{
			ARN: "arn:aws:iam::" + Account + ":root", Account: Account, UserID: Account, Observer: id == k.observer}}
	}
	return k
}

// random returns n random bytes in base 32, the alphabet of access key IDs.
func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b)
}

// Credentials returns the access key of the account, which is allowed everything.
func (c *Cloud) Credentials() (access, secret string) {
	return c.keys.root, c.keys.keys[c.keys.root].Secret
}

// ObserverCredentials returns an access key of the account for tests that look at it: so often that they would be
// throttled, or while a test injects faults.
func (c *Cloud) ObserverCredentials() (access, secret string) {
	return c.keys.observer, c.keys.keys[c.keys.observer].Secret
}

// RoleCredentials starts a session of a role. If session is the ID of an instance, the credentials are like those of
// its instance profile. The role's trust policy is not evaluated. The credentials expire after six hours, or when the
// role is deleted.
func (c *Cloud) RoleCredentials(role, session string) (access, secret, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.issue(role, session, sessionLength)
	return s.Access, s.Secret, s.Token
}

// ExpireSessions ends all sessions of a role.
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

// profileCredentials returns the credentials of an instance profile. It returns the same credentials until shortly
// before they expire. The caller holds the lock.
//
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html
func (c *Cloud) profileCredentials(role, instance string) ec2.Credentials {
	name := [2]string{role, instance}
	s := c.keys.profiles[name]
	if c.keys.keys[s.Access].Expires.Sub(c.cfg.Now()) < renewal {
		s = c.issue(role, instance, sessionLength)
		c.keys.profiles[name] = s
	}
	return s
}

var instanceForm = regexp.MustCompile(`^i-[0-9a-f]+$`)

// issue starts a session. The caller holds the lock.
func (c *Cloud) issue(role, session string, length time.Duration) ec2.Credentials {
	p := wire.Principal{ARN: "arn:aws:sts::" + Account + ":assumed-role/" + role + "/" + session, Account: Account,
		Role: role, Session: session}
	if instanceForm.MatchString(session) {
		p.SourceInstance = "arn:aws:ec2:" + c.cfg.Region + ":" + Account + ":instance/" + session
	}
	s := ec2.Credentials{Access: "ASIA" + random(10), Secret: random(25), Token: random(120),
		Expires: c.cfg.Now().Add(length)}
	c.keys.keys[s.Access] = issued{Key: auth.Key{Secret: s.Secret, Token: s.Token, Expires: s.Expires}, principal: p}
	return s
}
