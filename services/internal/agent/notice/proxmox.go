package notice

import "strings"

// proxmox gives no notices. The provider writes sys_vendor; without it, UEFI firmware names Proxmox.
var proxmox = Cloud{
	Name: "proxmox",
	Detect: func(f Firmware) bool {
		return f.Value("sys_vendor") == "Proxmox" || strings.Contains(f.Value("bios_vendor"), "Proxmox")
	},
}
