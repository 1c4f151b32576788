package notice

import "strings"

// proxmox gives no notices. Nstance's Proxmox provider sets sys_vendor. Without it, the UEFI firmware's vendor names
// Proxmox.
var proxmox = Cloud{
	Name: "proxmox",
	Detect: func(f Firmware) bool {
		return f.Value("sys_vendor") == "Proxmox" || strings.Contains(f.Value("bios_vendor"), "Proxmox")
	},
}
