package endpoints_test

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

func TestParse(t *testing.T) {
	got, err := endpoints.Parse("b=10.0.0.1:8993, a=[::1]:1,b=leader.example.com:8993,b=10.0.0.1:8993,")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]endpoints.Shard{{"b", []string{"10.0.0.1:8993", "leader.example.com:8993"}},
		{"a", []string{"[::1]:1"}}}, got); diff != "" {
		t.Error(diff)
	}
	if got, err := endpoints.Parse(" ,"); err != nil || len(got) > 0 {
		t.Errorf("of nothing: %v, %v", got, err)
	}
	for text, want := range map[string]string{
		"a":                "want shard=host:port",
		"A=h:1":            "shard: name",
		"=h:1":             "shard: name is empty",
		"a=h":              "want host:port",
		"a=:8993":          "host",
		"a=h:0":            "port",
		"a=h:70000":        "port",
		"a=h:08993":        "port",
		"a=h:operator":     "port",
		"a=::1:8993":       "want host:port",
		"a=https://h:8993": "want host:port",
		"a=h/x:8993":       "host",
		"a=b=h:8993":       "host",
		"ok=h:1,a= h:8993": "host",
	} {
		if _, err := endpoints.Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestParseAddrs(t *testing.T) {
	got, err := endpoints.ParseAddrs("10.0.0.1:8993, [fe80::1%eth0]:8993,10.0.0.1:8993,h:1")
	if diff := cmp.Diff([]string{"10.0.0.1:8993", "[fe80::1%eth0]:8993", "h:1"}, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	longest := strings.Repeat("a.", 126) + "a"
	if got, err := endpoints.ParseAddrs(longest + ":1"); err != nil || len(got) != 1 {
		t.Errorf("a name of 253 characters: %v, %v", got, err)
	}
	for _, text := range []string{"", " , ", "127.0.0.1", "h:1,h", "https://h:8993", "h:99999", "a=h:1",
		longest + "a:1"} {
		if got, err := endpoints.ParseAddrs(text); err == nil || !strings.Contains(err.Error(), "want host:port") {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

// Every accepted address can be dialled, and parsing the result again gives the same addresses.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"a=h:1", "a=h:1, b=[::1]:2,a=h.x:3", ",,", "a==h:1", "a=h:1,a=h:1", "A=h:1", "a=h:0",
		"a=https://h:1", "a=[fe80::1%eth0]:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := endpoints.Parse(text)
		if err != nil {
			if got != nil {
				t.Errorf("%q: %v beside %v", text, got, err)
			}
			return
		}
		var parts []string
		for _, shard := range got {
			if err := ident.ValidateName(shard.Name); err != nil || len(shard.Addrs) == 0 {
				t.Errorf("%q: %v, %v", text, shard, err)
			}
			dialable(t, shard.Addrs)
			for _, addr := range shard.Addrs {
				parts = append(parts, shard.Name+"="+addr)
			}
		}
		again, err := endpoints.Parse(strings.Join(parts, ","))
		if diff := cmp.Diff(got, again); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", text, err, diff)
		}
	})
}

func FuzzParseAddrs(f *testing.F) {
	for _, seed := range []string{"h:1", "10.0.0.1:8993, [::1]:2,h.x:3", ",,", "", "h", "h:0", "::1:8993",
		"https://h:1", "[fe80::1%eth0]:1", "[h]:1", "[::1]x:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := endpoints.ParseAddrs(text)
		if (err == nil) != (len(got) > 0) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
		dialable(t, got)
		if err != nil {
			return
		}
		if again, err := endpoints.ParseAddrs(strings.Join(got, ",")); err != nil || !slices.Equal(got, again) {
			t.Errorf("%q: %q, then %q, %v", text, got, again, err)
		}
	})
}

// dialable fails the test unless the addresses differ and each has a host and a port.
func dialable(t *testing.T, addrs []string) {
	t.Helper()
	seen := map[string]bool{}
	for _, addr := range addrs {
		host, port, err := net.SplitHostPort(addr)
		if err != nil || host == "" || port == "" || port == "0" || strings.ContainsAny(host, "/ \t\r\n,=[]\x00") ||
			seen[addr] {
			t.Errorf("%q: host %q, port %q, %v, again: %v", addr, host, port, err, seen[addr])
		}
		seen[addr] = true
	}
}
