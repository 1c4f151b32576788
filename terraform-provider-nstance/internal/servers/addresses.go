package servers

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// hostPattern is a host name (RFC 1123, section 2.1), with underscores, which private zones have.
var hostPattern = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)

// ParseAddresses reads the operator addresses of one shard, `host:port,…`, in their order and each once. There is at least one.
func ParseAddresses(text string) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		if err := checkAddress(part); err != nil {
			return nil, err
		}
		if !slices.Contains(out, part) {
			out = append(out, part)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("there is no address: want host:port")
	}
	return out, nil
}

// ParseServers reads `shard=host:port,…` as nstance-admin does: a shard that is there several times has several addresses, in their order. An empty
// text names none.
func ParseServers(text string) (map[string][]string, error) {
	out := map[string][]string{}
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		shard, addr, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("%q: want shard=host:port", part)
		}
		if err := ident.ValidateName(shard); err != nil {
			return nil, fmt.Errorf("%q: shard: %w", part, err)
		}
		if err := checkAddress(addr); err != nil {
			return nil, fmt.Errorf("%q: %w", part, err)
		}
		if !slices.Contains(out[shard], addr) {
			out[shard] = append(out[shard], addr)
		}
	}
	return out, nil
}

// checkAddress accepts what can be dialled: a host and a port from 1 to 65535.
func checkAddress(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is not an address: want host:port", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return fmt.Errorf("%q has no port from 1 to 65535: want host:port", addr)
	}
	if _, err := netip.ParseAddr(host); err != nil && (len(host) > 253 || !hostPattern.MatchString(host)) {
		return fmt.Errorf("%q has a host that is neither an IP address nor a name: want host:port", addr)
	}
	return nil
}
