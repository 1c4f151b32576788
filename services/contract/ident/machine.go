package ident

import (
	"errors"
	"net/netip"
	"strings"
)

// ValidateHostname checks the host name of a machine: labels of letters, digits, dashes, and underscores. An empty name
// is valid and means unknown.
func ValidateHostname(name string) error {
	if name == "" {
		return nil
	}
	if len(name) > 253 {
		return errors.New("has more than 253 characters")
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return errors.New("has an empty label, or one of more than 63 characters")
		}
		for i := range len(label) {
			c := label[i]
			if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return errors.New("has a character that is not a letter, digit, dash or underscore")
			}
		}
	}
	return nil
}

// ParseIPv4 returns the canonical form of the IPv4 address of a machine. An empty text is valid and returned unchanged.
func ParseIPv4(text string) (string, error) { return parseIP(text, netip.Addr.Is4) }

// ParseIPv6 is [ParseIPv4] for IPv6.
func ParseIPv6(text string) (string, error) { return parseIP(text, netip.Addr.Is6) }

func parseIP(text string, family func(netip.Addr) bool) (string, error) {
	if text == "" {
		return "", nil
	}
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil || !family(addr) || addr.Is4In6():
		return "", errors.New("is not an address of this family")
	case addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast():
		return "", errors.New("is not the address of one machine")
	}
	return addr.String(), nil
}
