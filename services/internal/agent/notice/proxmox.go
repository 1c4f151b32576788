package notice

import "strings"

// proxmox gives no notices. A VM of Proxmox VE is detected in two ways. Nstance's Proxmox provider sets sys_vendor of
// its VMs. In other VMs of Proxmox VE, the vendor of the UEFI firmware contains "Proxmox".
var proxmox = Cloud{
	Name: "proxmox",
	Detect: func(f Firmware) bool {
		return f.Value("sys_vendor") == "Proxmox" || strings.Contains(f.Value("bios_vendor"), "Proxmox")
	},
}
