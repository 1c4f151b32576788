package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// ports holds three kinds of addresses: those on which a server listens, those of this server for clients, and those of
// the leader for clients.
type ports struct {
	bind      config.Addresses
	advertise config.Addresses
	// leader are the addresses of the leader: the shard's fixed addresses, or this server's own if the shard has none.
	leader config.Addresses
	// leaderHosts are the shard's fixed name and addresses, in the order in which clients try them.
	leaderHosts []string
	// hosts are all names and addresses that the server's certificate must contain.
	hosts []string
}

func portsOf(shard *config.Shard, o Options) (ports, error) {
	p := ports{bind: shard.Server.Bind, advertise: shard.Server.Advertise}
	primary := primaryHost()
	var errs []error
	for _, port := range []struct {
		field           string
		bind, advertise *string
	}{
		{"health_addr", &p.bind.Health, &p.advertise.Health},
		{"election_addr", &p.bind.Election, &p.advertise.Election},
		{"registration_addr", &p.bind.Registration, &p.advertise.Registration},
		{"operator_addr", &p.bind.Operator, &p.advertise.Operator},
		{"agent_addr", &p.bind.Agent, &p.advertise.Agent},
	} {
		isSet := *port.advertise != "" && *port.advertise != *port.bind
		var err error
		if *port.bind, err = shiftPort(*port.bind, o.shift()); err != nil {
			errs = append(errs, fmt.Errorf("server.bind.%s: %w", port.field, err))
		}
		addr := *port.bind
		if *port.advertise != "" {
			addr, _ = shiftPort(*port.advertise, o.shift())
		}
		host, number, err := net.SplitHostPort(addr)
		if err != nil {
			errs = append(errs, fmt.Errorf("server.advertise: %w", err))
			continue
		}
		// The flag --advertise-host replaces a wildcard address, and applies if the configuration has no address for
		// clients. It does not replace an address that the configuration advertises, such as a load balancer's.
		switch {
		case isSet && !wildcard(host):
		case o.AdvertiseHost != "":
			host = o.AdvertiseHost
		case wildcard(host):
			if host, _, _ = net.SplitHostPort(*port.bind); wildcard(host) {
				host = primary
			}
		}
		*port.advertise = net.JoinHostPort(host, number)
	}

	p.leader = p.advertise
	if network := shard.Server.LeaderNetwork; network != nil {
		p.leaderHosts = slices.DeleteFunc([]string{network.DNSName, network.IPv4, network.IPv6},
			func(host string) bool { return host == "" })
		host := ""
		if len(p.leaderHosts) > 0 {
			host = p.leaderHosts[0]
		}
		for _, addr := range []*string{&p.leader.Registration, &p.leader.Operator, &p.leader.Agent} {
			_, port, err := net.SplitHostPort(*addr)
			if err == nil && host != "" {
				*addr = net.JoinHostPort(host, port)
			}
		}
		p.hosts = append(p.hosts, p.leaderHosts...)
	}
	for _, addr := range []string{p.advertise.Election, p.advertise.Registration, p.advertise.Operator,
		p.advertise.Agent,
		p.bind.Registration, p.bind.Operator, p.bind.Agent} {
		if host, _, err := net.SplitHostPort(addr); err == nil && !wildcard(host) {
			p.hosts = append(p.hosts, host)
		}
	}
	p.hosts = append(p.hosts, "localhost", "127.0.0.1")
	slices.Sort(p.hosts)
	p.hosts = slices.DeleteFunc(slices.Compact(p.hosts), func(h string) bool { return h == "" })
	return p, errors.Join(errs...)
}

// agentAddrs returns all addresses of the leader's agent service, in the order in which agents try them.
func (p ports) agentAddrs() []string {
	addrs := []string{p.leader.Agent}
	if _, port, err := net.SplitHostPort(p.leader.Agent); err == nil {
		for _, host := range p.leaderHosts {
			addrs = appendNew(addrs, net.JoinHostPort(host, port))
		}
	}
	return addrs
}

// appendNew appends the elements of `more` that are not in list yet.
func appendNew(list []string, more ...string) []string {
	for _, one := range more {
		if !slices.Contains(list, one) {
			list = append(list, one)
		}
	}
	return list
}

// lock returns the addresses that this server writes to the election lock.
func (p ports) lock() record.LockAddresses {
	return record.LockAddresses{Election: p.advertise.Election, Registration: p.advertise.Registration,
		Operator: p.advertise.Operator, Agent: p.advertise.Agent}
}

func wildcard(host string) bool {
	if host == "" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsUnspecified()
}

func shiftPort(addr string, by int) (string, error) {
	if by == 0 || addr == "" {
		return addr, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr, err
	}
	n, err := strconv.Atoi(port)
	if err != nil || n+by > 65535 {
		return addr, fmt.Errorf("port %q cannot be shifted by %d", port, by)
	}
	return net.JoinHostPort(host, strconv.Itoa(n+by)), nil
}

// primaryHost returns the address of the interface with the default route, or the first global unicast address of the
// machine. It sends no packet.
func primaryHost() string {
	// 192.0.2.0/24 is TEST-NET-1 (RFC 5737): routed like any other network, but never reached.
	if conn, err := (&net.Dialer{}).DialContext(context.Background(), "udp", "192.0.2.1:9"); err == nil {
		defer conn.Close()
		if local, ok := conn.LocalAddr().(*net.UDPAddr); ok {
			return local.IP.String()
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err == nil {
		for _, addr := range addrs {
			if ipnet, ok := addr.(*net.IPNet); ok && ipnet.IP.IsGlobalUnicast() {
				return ipnet.IP.String()
			}
		}
	}
	return "127.0.0.1"
}
