package notice

import "strings"

// proxmox gives no notices. Nstance's Proxmox provider sets sys_vendor of a VM. On other VMs, the vendor of the UEFI
// firmware contains "Proxmox".
var proxmox = Cloud{
	Name: "proxmox",
	Detect: func(f Firmware) bool {
		return f.Value("sys_vendor") == "Proxmox" || strings.Contains(f.Value("bios_vendor"), "Proxmox")
	},
}
