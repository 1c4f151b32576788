package vmsize

import "testing"

// TestParse reads sizes of VMs.
func TestParse(t *testing.T) {
	if size, err := Parse("2x4096"); err != nil || size != (Size{CPUs: 2, MemoryMiB: 4096}) {
		t.Errorf("2x4096: %+v, %v", size, err)
	}
	for _, text := range []string{"", "2", "x", "0x1", "1x0", "2x4096 ", "t3.micro", "99999x1", "1x9999999999"} {
		if size, err := Parse(text); err == nil {
			t.Errorf("%q: %+v, want an error", text, size)
		}
	}
}
