#!/bin/sh
# Make a small guest for tests and trials: images/local/guest.sh AGENT DIRECTORY writes DIRECTORY/vmlinuz and
# DIRECTORY/initrd. The guest is a Debian kernel with busybox and the given nstance-agent, all in memory. It boots in
# seconds without hardware support and needs 128 MiB. It runs the user data of its seed as a script, then the agent.
# Debian's packages are downloaded once and kept in $NSTANCE_TOOLS_CACHE (default ~/.cache/nstance-tools).
set -eu

[ $# -eq 2 ] || {
	echo "usage: images/local/guest.sh AGENT DIRECTORY" >&2
	exit 2
}
agent=$1 out=$2
init=$(dirname -- "$0")/init
for program in apt-get dpkg-deb gzip; do
	command -v "$program" >/dev/null || {
		echo "guest.sh: $program is missing: the guest is made from Debian packages, on Debian" >&2
		exit 1
	}
done

kernel=$(apt-cache depends --important linux-image-cloud-amd64 | sed -n 's/^ *Depends: //p' | head -n 1)
version=$(apt-cache policy "$kernel" | sed -n 's/^ *Candidate: //p')
[ -n "$version" ] || {
	echo "guest.sh: apt knows no kernel for clouds: run apt-get update" >&2
	exit 1
}
cache=${NSTANCE_TOOLS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nstance-tools}/guest-$kernel-$version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
if [ ! -d "$cache" ]; then
	echo "guest.sh: downloading $kernel and busybox-static" >&2
	(
		cd "$work"
		apt-get download -q "$kernel" busybox-static >&2
		for package in *.deb; do
			dpkg-deb -x "$package" packages
		done
	)
	mkdir -p "$(dirname -- "$cache")"
	mv -T "$work/packages" "$cache" || [ -d "$cache" ] # another call may have been faster
fi

busybox=$cache/bin/busybox
root=$work/root
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/seed" "$root/etc" "$root/run" "$root/tmp" "$out"
cp "$busybox" "$root/bin/"
cp "$agent" "$root/bin/nstance-agent"
cp "$init" "$root/init"
chmod 755 "$root/init"

# The modules that the guest loads, with the modules that they need.
release=$(basename -- "$cache"/lib/modules/*)
modules=lib/modules/$release
mkdir -p "$work/all/lib/modules" "$root/$modules"
ln -s "$cache/$modules" "$work/all/$modules"
(cd "$cache/$modules" && find . -name '*.ko' | sed 's|^\./||') >"$work/files"
need() {
	file=$(grep -E "/$1\.ko$" "$work/files") || {
		echo "guest.sh: the kernel $release has no module $1" >&2
		exit 1
	}
	[ ! -e "$root/$modules/$file" ] || return 0
	mkdir -p "$(dirname -- "$root/$modules/$file")"
	cp "$cache/$modules/$file" "$root/$modules/$file"
	for other in $(tr '\0' '\n' <"$cache/$modules/$file" | sed -n 's/^depends=//p' | tr ',' ' '); do
		need "$other"
	done
}
for module in virtio_pci virtio_net virtio_scsi sr_mod isofs; do
	need "$module"
done
"$busybox" depmod -b "$root" "$release"

(cd "$root" && find . | "$busybox" cpio -o -H newc) >"$out/initrd.new" 2>/dev/null
mv "$out/initrd.new" "$out/initrd"
cp "$cache/boot/vmlinuz-$release" "$out/vmlinuz"
