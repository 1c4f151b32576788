package machine

import (
	"io/fs"
	"strings"
)

// Provider determines the machine's provider from the firmware's tables: aws, gcp, proxmox or none. dmi is
// /sys/class/dmi/id. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html
func Provider(dmi fs.FS) string {
	read := func(name string) string {
		text, err := fs.ReadFile(dmi, name)
		if err != nil {
			return "" // this kind of machine does not have the file
		}
		return strings.TrimSpace(string(text))
	}
	switch {
	case read("sys_vendor") == "Amazon EC2":
		return "aws"
	case read("sys_vendor") == "Google", strings.HasPrefix(read("product_name"), "Google Compute Engine"):
		return "gcp"
	case strings.Contains(read("bios_vendor"), "Proxmox"):
		return "proxmox"
	}
	return "none"
}
