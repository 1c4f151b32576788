#!/bin/sh
# Validate the Packer templates for every role and architecture, with the pinned Packer and its bundled plugins. Nothing is downloaded, because the file
# that names the plugins is left out. The plugins' versions must be those of the pinned Packer, and the source images must have exact names.
set -eu
cd "$(dirname -- "$0")/.."

packer=$(scripts/tool.sh packer)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
export CHECKPOINT_DISABLE=1 PACKER_CONFIG_DIR="$work/config" PACKER_PLUGIN_PATH="$work/plugins" PACKER_NO_COLOR=1
mkdir -p "$work/config" "$work/plugins"

"$packer" fmt -check -diff images/packer

for plugin in amazon googlecompute qemu; do
	version=$(sed -n "s|.*github.com/hashicorp/packer-plugin-$plugin v\([0-9.]*\).*|\1|p" tests/tools/packer/go.mod)
	grep -A 1 "hashicorp/$plugin\"" images/packer/plugins.pkr.hcl | grep -q "version = \"= $version\"" || {
		echo "images-check.sh: images/packer/plugins.pkr.hcl must require exactly version $version of the plugin $plugin, as the pinned Packer has" >&2
		exit 1
	}
done
for variable in aws_base_name qemu_base; do
	sed -n "/^variable \"$variable\"/,/^}/p" images/packer/variables.pkr.hcl | grep -E -q '^  default +=.*ARCH-[0-9]{8}-[0-9]+[."]' || {
		echo "images-check.sh: the default of $variable must name one build of Debian's image, such as debian-12-ARCH-20261006-2623" >&2
		exit 1
	}
done
[ "$(sed -n '/^variable "gcp_base_names"/,/^}/p' images/packer/variables.pkr.hcl | grep -E -c 'debian-12-bookworm-(arm64-)?v[0-9]{8}"')" -eq 2 ] || {
	echo "images-check.sh: the default of gcp_base_names must name one build of Debian's image for each architecture" >&2
	exit 1
}
commit=0123456789abcdef0123456789abcdef01234567

cp -R images/packer "$work/packer"
rm "$work/packer/plugins.pkr.hcl"
: >"$work/binary"
for role in server agent; do
	for arch in arm64 amd64; do
		"$packer" validate -var "role=$role" -var "arch=$arch" -var version=1.0.0 -var "binary=$work/binary" -var "modules=$work/binary" -var "commit=$commit" \
			"$work/packer" >"$work/out" 2>&1 || {
			cat "$work/out" >&2
			echo "images-check.sh: the templates are not valid for role=$role arch=$arch" >&2
			exit 1
		}
	done
done
# systemd-analyze checks the units, and that their exposure stays at most 2.5 of 10. It requires the programs to exist.
if command -v systemd-analyze >/dev/null; then
	for unit in images/packer/files/*.service; do
		sed 's|^ExecStart=/usr/local/bin/[a-z-]*|ExecStart=/bin/true|' "$unit" >"$work/$(basename "$unit")"
		systemd-analyze verify "$work/$(basename "$unit")"
		systemd-analyze security --offline=yes --threshold=25 --no-pager "$work/$(basename "$unit")" >"$work/out" || {
			cat "$work/out" >&2
			echo "images-check.sh: $unit is not hardened enough" >&2
			exit 1
		}
	done
fi
if "$packer" validate -var role=cook -var arch=arm64 -var version=1.0.0 -var "binary=$work/binary" -var "modules=$work/binary" \
	-var "commit=$commit" "$work/packer" >/dev/null 2>&1; then
	echo "images-check.sh: the templates accept a role that does not exist" >&2
	exit 1
fi
"$packer" validate -var run=ct-1234 -var aws_region=eu-west-1 -var gcp_project=my-project -var gcp_zone=us-central1-a -var role=server -var arch=amd64 \
	-var version=1.0.0 -var "binary=$work/binary" -var "modules=$work/binary" -var "commit=$commit" "$work/packer" >"$work/out" 2>&1 || {
	cat "$work/out" >&2
	echo "images-check.sh: the templates are not valid for a run of cloud-test" >&2
	exit 1
}
agent='{"version": "3.3.1611.0", "sha256": "'$(printf '%064d' 0)'"}'
"$packer" validate -var role=server -var arch=arm64 -var version=1.0.0 -var "binary=$work/binary" -var "modules=$work/binary" -var "commit=$commit" \
	-var "aws_ssm_agent=$agent" "$work/packer" >"$work/out" 2>&1 || {
	cat "$work/out" >&2
	echo "images-check.sh: the templates are not valid with an agent of Systems Manager" >&2
	exit 1
}
if "$packer" validate -var role=server -var arch=arm64 -var version=1.0.0 -var "binary=$work/binary" -var "modules=$work/binary" -var "commit=$commit" \
	-var 'aws_ssm_agent={"version": "latest", "sha256": ""}' "$work/packer" >/dev/null 2>&1; then
	echo "images-check.sh: the templates accept an agent of Systems Manager without a checksum" >&2
	exit 1
fi
echo "images: templates valid for server and agent, arm64 and amd64, on aws, gcp and qemu"
