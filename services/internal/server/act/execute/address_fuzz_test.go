package execute

import (
	"net/netip"
	"testing"
)

// FuzzAddress checks that address returns the canonical form or "", so that a record can always hold the result.
func FuzzAddress(f *testing.F) {
	for _, text := range []string{"10.0.0.1", "FD00::0001", "fe80::1%eth0", "::ffff:10.0.0.1", "", "10.0.0.256",
		"10.0.0.1/24", " 10.0.0.1", "1.2.3.4\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := address(text)
		if got == "" {
			if _, err := netip.ParseAddr(text); err == nil {
				t.Errorf("%q is lost", text)
			}
			return
		}
		addr, err := netip.ParseAddr(got)
		if err != nil || addr.String() != got || addr.Zone() != "" || addr.Is4In6() || address(got) != got {
			t.Errorf("%q became %q", text, got)
		}
	})
}
