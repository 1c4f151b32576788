package notice

import "strings"

// proxmox gives no notices. Its firmware names it.
var proxmox = Cloud{
	Name:   "proxmox",
	Detect: func(f Firmware) bool { return strings.Contains(f.Value("bios_vendor"), "Proxmox") },
}
