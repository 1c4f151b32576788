package server

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/nstance-kit/nstance/services/contract/config"
)

func TestParseOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		args  string
		check func(Options) bool
		err   string
	}{
		"usual": {"--id s1 --shard a --storage s3 --bucket b --prefix p/", func(o Options) bool {
			return o.ID == "s1" && o.Shard == "a" && o.Location.Provider == "s3" && o.Location.Bucket == "b" &&
				o.Location.Prefix == "p/" &&
				o.HealthAddr == "0.0.0.0:8990" && o.CacheDir == "./cache"
		}, ""},
		"given ID":    {"--id s1 --shard a --bucket b", func(o Options) bool { return !o.HostID }, ""},
		"host's name": {"--shard a --bucket b", func(o Options) bool { return o.HostID && o.ID != "" }, ""},
		"second of a machine": {"--id s1 --shard a --bucket b --instance 2", func(o Options) bool {
			return o.HealthAddr == "0.0.0.0:9000"
		}, ""},
		"verbose": {"--id s1 --shard a --bucket b -v", func(o Options) bool { return o.Debug }, ""},
		"validate the shard's": {"--validate --shard a --bucket b", func(o Options) bool {
			return o.Validate && o.ValidateFile == ""
		}, ""},
		"validate a file": {"--validate=x.jsonc", func(o Options) bool {
			return o.Validate && o.ValidateFile == "x.jsonc"
		}, ""},
		"version needs nothing": {"--version", func(o Options) bool { return o.Version }, ""},
		"file after a space":    {"--validate x.jsonc --shard a --bucket b", nil, "--validate=FILE"},
		"everything missing":    {"--id=$", nil, "--shard:"},
		"bucket missing too":    {"--id=$", nil, "--bucket: is missing"},
		"bad id too":            {"--id=$", nil, "--id:"},
		"bad instance":          {"--id s1 --shard a --bucket b --instance -1", nil, "--instance"},
		"health without port":   {"--id s1 --shard a --bucket b --health-addr 8990", nil, "--health-addr"},
		"health's port too big": {"--id s1 --shard a --bucket b --health-addr :70000", nil, "--health-addr"},
		"host in brackets":      {"--id s1 --shard a --bucket b --advertise-host [::1]", nil, "--advertise-host"},
		"host of all":           {"--id s1 --shard a --bucket b --advertise-host 0.0.0.0", nil, "--advertise-host"},
		"host and port":         {"--id s1 --shard a --bucket b --advertise-host h:1", nil, "--advertise-host"},
		"IPv6 host": {"--id s1 --shard a --bucket b --advertise-host fd00::1", func(o Options) bool {
			return o.AdvertiseHost == "fd00::1"
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := ParseOptions(strings.Fields(tc.args), &bytes.Buffer{})
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got error %v, want one about %q", err, tc.err)
				}
				return
			}
			if err != nil || !tc.check(o) {
				t.Fatalf("got %+v, %v", o, err)
			}
		})
	}
}

func TestHelpListsEveryOption(t *testing.T) {
	var out bytes.Buffer
	if _, err := ParseOptions([]string{"--help"}, &out); !errors.Is(err, pflag.ErrHelp) {
		t.Fatal(err)
	}
	for _, part := range []string{"Usage:", "--leader-interface", "NSTANCE_ENCRYPTION_KEY", "Exit status",
		"--validate"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("help does not speak of %s", part)
		}
	}
}

func TestPorts(t *testing.T) {
	bind := config.Addresses{Health: "0.0.0.0:8990", Election: "0.0.0.0:8991", Registration: "127.0.0.1:8992",
		Operator: "0.0.0.0:8993", Agent: "0.0.0.0:8994"}
	shard := func(change func(*config.Server)) *config.Shard {
		s := &config.Shard{Server: config.Server{Bind: bind}}
		if change != nil {
			change(&s.Server)
		}
		return s
	}
	p, err := portsOf(shard(nil), Options{AdvertiseHost: "10.0.0.7"})
	if err != nil {
		t.Fatal(err)
	}
	want := config.Addresses{Health: "10.0.0.7:8990", Election: "10.0.0.7:8991", Registration: "10.0.0.7:8992",
		Operator: "10.0.0.7:8993", Agent: "10.0.0.7:8994"}
	if diff := cmp.Diff(want, p.advertise); diff != "" {
		t.Errorf("advertised (-want +got):\n%s", diff)
	}

	// A host that the configuration advertises takes precedence over --advertise-host.
	p, err = portsOf(shard(func(s *config.Server) {
		s.Advertise = s.Bind
		s.Advertise.Agent, s.Advertise.Operator = "agents.example.com:443", "0.0.0.0:9993"
	}), Options{AdvertiseHost: "10.0.0.7"})
	if err != nil {
		t.Fatal(err)
	}
	want.Agent, want.Operator = "agents.example.com:443", "10.0.0.7:9993"
	if diff := cmp.Diff(want, p.advertise); diff != "" {
		t.Errorf("advertised (-want +got):\n%s", diff)
	}

	p, err = portsOf(shard(nil), Options{Instance: 3})
	if err != nil {
		t.Fatal(err)
	}
	if p.bind.Health != "0.0.0.0:9010" || p.bind.Election != "0.0.0.0:9011" || p.bind.Agent != "0.0.0.0:9014" {
		t.Errorf("third server of a machine binds %+v", p.bind)
	}
	if p.advertise.Registration != "127.0.0.1:9012" || strings.HasPrefix(p.advertise.Agent, "0.0.0.0") {
		t.Errorf("it advertises %+v", p.advertise)
	}

	p, err = portsOf(shard(func(s *config.Server) {
		s.LeaderNetwork = &config.LeaderNetwork{IPv4: "10.0.0.100"}
	}), Options{AdvertiseHost: "10.0.0.7"})
	if err != nil {
		t.Fatal(err)
	}
	if p.leader.Agent != "10.0.0.100:8994" || p.advertise.Agent != "10.0.0.7:8994" {
		t.Errorf("agents are sent to %s, operators of this server to %s", p.leader.Agent, p.advertise.Agent)
	}
	if !strings.Contains(strings.Join(p.hosts, " "), "10.0.0.100") {
		t.Errorf("the certificate's hosts %v lack the leader's address", p.hosts)
	}

	if _, err := portsOf(shard(func(s *config.Server) {
		s.Bind.Health = "0.0.0.0:65530"
	}), Options{Instance: 2}); err == nil {
		t.Error("a port above 65535 was accepted")
	}
}

func TestRetryPause(t *testing.T) {
	for try, longest := range map[int]float64{1: 1, 2: 2, 3: 4, 4: 8, 5: 10, 50: 10} {
		for range 100 {
			if got := retryPause(try).Seconds(); got > longest || got < longest*3/4 {
				t.Errorf("try %d waits %.1f s, want %.1f s less up to a quarter", try, got, longest)
			}
		}
	}
}
