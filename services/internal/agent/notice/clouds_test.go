package notice

import (
	"slices"
	"testing"
	"testing/fstest"

	"github.com/nstance-kit/nstance/services/contract/config"
)

func TestFind(t *testing.T) {
	for want, firmware := range map[string]fstest.MapFS{
		"aws": {"sys_vendor": {Data: []byte("Amazon EC2\n")}},
		"gcp": {"sys_vendor": {Data: []byte("Google\n")}, "product_name": {
			Data: []byte("Google Compute Engine\n")}},
		"proxmox": {"sys_vendor": {Data: []byte("QEMU\n")}, "bios_vendor": {
			Data: []byte("Proxmox distribution of EDK II\n")}},
		NoCloud: {"sys_vendor": {Data: []byte("QEMU\n")}, "bios_vendor": {Data: []byte("SeaBIOS\n")}},
	} {
		if got := Find("", Firmware{firmware}).Name; got != want {
			t.Errorf("detected %s, want %s", got, want)
		}
		if got := Find(want, Firmware{fstest.MapFS{}}).Name; got != want {
			t.Errorf("found %s, want %s", got, want)
		}
	}
	written := fstest.MapFS{"sys_vendor": {Data: []byte("Proxmox\n")}, "bios_vendor": {Data: []byte("SeaBIOS\n")}}
	if got := Find("", Firmware{written}).Name; got != "proxmox" {
		t.Errorf("detected %s by the vendor that the provider writes", got)
	}
	if got := Find("", Firmware{fstest.MapFS{}}).Name; got != NoCloud {
		t.Errorf("detected %s without firmware", got)
	}
}

// TestNames checks that the agent and the shard configuration use the same names.
func TestNames(t *testing.T) {
	for _, name := range Names() {
		if name != NoCloud && !slices.Contains(config.CloudNames(), name) {
			t.Errorf("the shard configuration has no provider %q", name)
		}
	}
}
