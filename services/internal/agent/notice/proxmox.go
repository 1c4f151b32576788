package notice

import "strings"

// proxmox gives no notices. Nstance's Proxmox provider sets sys_vendor. If sys_vendor is not set, the vendor of the
// UEFI firmware still names Proxmox.
var proxmox = Cloud{
	Name: "proxmox",
	Detect: func(f Firmware) bool {
		return f.Value("sys_vendor") == "Proxmox" || strings.Contains(f.Value("bios_vendor"), "Proxmox")
	},
}
