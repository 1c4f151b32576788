package server

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// FuzzParseOptions parses command lines, which have one argument per line. If ParseOptions accepts a command line, the
// options have everything that the server needs. If not, the error contains the name of the flag.
func FuzzParseOptions(f *testing.F) {
	for _, args := range []string{
		"--id\ns1\n--shard\na\n--storage\ns3\n--bucket\nb\n--prefix\np/",
		"--shard=a\n--bucket=b\n--instance=3\n--advertise-host=10.0.0.7", "--validate=x.jsonc",
		"--validate\n--shard=a\n--bucket=b",
		"--version", "--help", "--id=$\n--instance=-1", "--id=s1\n--shard=a\n--bucket=b\n--health-addr=8990",
		"--id=s1\n--shard=a\n--bucket=b\n--health-addr=[::]:70000",
		"--id=s1\n--shard=a\n--bucket=b\n--advertise-host=a b",
		"--id=s1\n--shard=a\n--bucket=b\n--advertise-host=[::1]",
		"--id=s1\n--shard=a\n--bucket=b\n--advertise-host=fe80::1%eth0",
		"--id=s1\n--shard=a\n--bucket=b\n--advertise-host=0.0.0.0", "-v\n--debug=maybe",
		"--instance=99999999999999999999", "start",
	} {
		f.Add(args)
	}
	bind := config.Addresses{Health: "0.0.0.0:8990", Election: "0.0.0.0:8991", Registration: "[::]:8992",
		Operator: ":8993", Agent: "0.0.0.0:8994"}
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, "\n")
		var help bytes.Buffer
		o, err := ParseOptions(args, &help)
		switch {
		case errors.Is(err, pflag.ErrHelp):
			if help.Len() == 0 {
				t.Errorf("%q: no help", args)
			}
			return
		case err != nil:
			if !strings.Contains(err.Error(), "-") && !strings.Contains(err.Error(), "argument") {
				t.Errorf("%q is refused with %q, which names no flag", args, err)
			}
			return
		case o.Version || o.ValidateFile != "":
			return
		}
		if ident.ValidateName(o.Shard) != nil || o.Location.Bucket == "" || o.shift() < 0 || o.shift() > 1000 ||
			!o.Validate && authority.ValidateServerID(o.ID) != nil {
			t.Errorf("%q gave %+v", args, o)
		}
		if _, port, err := net.SplitHostPort(o.HealthAddr); err != nil || !isPort(port) {
			t.Errorf("%q: probes at %q", args, o.HealthAddr)
		}
		p, err := portsOf(&config.Shard{Server: config.Server{Bind: bind}}, o)
		if err != nil {
			t.Errorf("%q: %v", args, err)
		}
		for _, addr := range []string{p.advertise.Health, p.advertise.Election, p.advertise.Registration,
			p.advertise.Operator, p.advertise.Agent} {
			host, port, err := net.SplitHostPort(addr)
			if ip, _ := netip.ParseAddr(host); err != nil || !isPort(port) || wildcard(host) || ip.Zone() != "" ||
				!ip.IsValid() && strings.ContainsAny(host, " \t\n\x00:[]%/") {
				t.Errorf("%q: others get %q", args, addr)
			}
		}
	})
}

func isPort(text string) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n >= 0 && n <= 65535
}

// FuzzInterfaceID checks that interfaceID returns the ID at the end of an ARN, and any other text unchanged.
func FuzzInterfaceID(f *testing.F) {
	for _, text := range []string{"", "eni-0123456789abcdef0",
		"arn:aws:ec2:us-west-2:123456789012:network-interface/eni-0123456789abcdef0",
		"arn:aws:ec2:::network-interface/", "arn:"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id := interfaceID(text)
		if !strings.HasSuffix(text, id) || !strings.HasPrefix(text, "arn:") && id != text {
			t.Errorf("%q gave %q", text, id)
		}
		if !strings.HasPrefix(id, "arn:") && interfaceID("arn:aws:ec2:r:1:network-interface/"+id) != id {
			t.Errorf("%q is not what its ARN gives", id)
		}
	})
}
