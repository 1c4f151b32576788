#!/bin/sh
# Make an image of Debian 12 for VMs of libvirt: images/local/debian.sh PROGRAM DIRECTORY writes DIRECTORY/vmlinuz,
# DIRECTORY/initrd and DIRECTORY/disk.qcow2. It has systemd, cloud-init and the given nstance-agent or nstance-server, as
# the images of Packer have them, and boots directly from the kernel. It needs Debian, root and the network.
set -eu

[ $# -eq 2 ] || {
	echo "usage: images/local/debian.sh PROGRAM DIRECTORY" >&2
	exit 2
}
program=$1 out=$2
role=$(basename -- "$program" | sed s/nstance-//)
packer=$(dirname -- "$0")/../packer
for tool in mmdebstrap mkfs.ext4 qemu-img; do
	command -v "$tool" >/dev/null || {
		echo "debian.sh: $tool is missing: apt-get install mmdebstrap e2fsprogs qemu-utils" >&2
		exit 1
	}
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

mkdir -p "$work/nstance" "$out"
cp -R "$packer/provision.sh" "$packer/files" "$work/nstance/"
cp "$program" "$work/nstance/nstance-$role"
go version -m "$program" >"$work/nstance/modules"
printf 'datasource_list: [NoCloud]\nlocale: C.UTF-8\n' >"$work/nstance.cfg"
echo '/dev/vda / ext4 defaults 0 1' >"$work/fstab"
root=$work/root
# shellcheck disable=SC2016 # mmdebstrap's shell expands $1.
mmdebstrap --quiet --variant=important --include=linux-image-cloud-amd64,initramfs-tools,cloud-init,netplan.io \
	--include=systemd-resolved,dbus,ca-certificates,openssh-server,sudo \
	--customize-hook="copy-in '$work/nstance' /tmp" \
	--customize-hook="copy-in '$work/fstab' /etc" \
	--customize-hook="copy-in '$work/nstance.cfg' /etc/cloud/cloud.cfg.d" \
	--customize-hook='chroot "$1" env NSTANCE_ROLE='"$role"' NSTANCE_PLATFORM=qemu NSTANCE_MODULES=/tmp/nstance/modules \
		NSTANCE_VERSION=0 NSTANCE_COMMIT=none NSTANCE_BASE=debian-12 sh /tmp/nstance/provision.sh' \
	bookworm "$root"
cp "$root"/boot/vmlinuz-* "$out/vmlinuz"
cp "$root"/boot/initrd.img-* "$out/initrd"
rm "$root"/boot/initrd.img-*
truncate -s 2G "$work/disk"
mkfs.ext4 -q -d "$root" "$work/disk"
qemu-img convert -O qcow2 "$work/disk" "$out/disk.qcow2"
