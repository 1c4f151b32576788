package ident

import (
	"fmt"
	"strings"
)

// DefaultTenant is the tenant of objects that do not name a tenant. It always exists.
const DefaultTenant = "default"

const (
	// MaxName is the maximum length of the name of a shard, group, template or subnet pool, in characters.
	MaxName = 32
	// MaxOuterName is the maximum length of the name of a cluster or tenant. It is less than MaxName, because a Cluster
	// API name consists of a cluster's name, "--" and a tenant's name, and may have 63 characters.
	MaxOuterName = 30
)

// ValidateName checks the name of a shard, group, template or subnet pool.
func ValidateName(s string) error { return validateName(s, MaxName) }

// ValidateClusterName checks a cluster's ID.
func ValidateClusterName(s string) error { return validateName(s, MaxOuterName) }

// ValidateTenantName checks a tenant's name.
func ValidateTenantName(s string) error { return validateName(s, MaxOuterName) }

// validateName accepts ^[a-z0-9]([a-z0-9-]*[a-z0-9])?$ without "--". Where two names are joined, "--" separates them.
func validateName(s string, limit int) error {
	switch {
	case s == "":
		return fmt.Errorf("name is empty")
	case len(s) > limit:
		return fmt.Errorf("name %s has %d characters, at most %d are allowed", quote(s), len(s), limit)
	case strings.Contains(s, "--"):
		return fmt.Errorf("name %s contains \"--\", which is reserved", quote(s))
	case s[0] == '-' || s[len(s)-1] == '-':
		return fmt.Errorf("name %s starts or ends with a dash", quote(s))
	case strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }):
		return fmt.Errorf("name %s may only have lower-case letters, digits and dashes", quote(s))
	}
	return nil
}

// ValidatePrefix checks the prefix of an ID: three lower-case letters.
func ValidatePrefix(s string) error {
	if len(s) != prefixLen || strings.ContainsFunc(s, func(r rune) bool { return r < 'a' || r > 'z' }) {
		return fmt.Errorf("prefix %s: want three lower-case letters", quote(s))
	}
	return nil
}

// ValidateKind checks a template's kind, which is the prefix of its instances' IDs: any prefix but the operators'.
func ValidateKind(s string) error {
	if err := ValidatePrefix(s); err != nil {
		return err
	}
	if s == OperatorPrefix {
		return fmt.Errorf("kind %q is reserved for operators", s)
	}
	return nil
}

// quote quotes s for a message. It cuts off what follows the first 64 bytes of s.
func quote(s string) string {
	const limit = 64
	if len(s) > limit {
		return fmt.Sprintf("%q…", s[:limit])
	}
	return fmt.Sprintf("%q", s)
}
