#!/bin/sh
# Write a CLI configuration that makes Terraform and OpenTofu use a provider binary of this clone.
#
#   scripts/tf-env.sh [PROVIDER [FILE]]            needs no init and no registry
#   scripts/tf-env.sh --mirror [PROVIDER [FILE]]   for configurations with other providers, which need init
#   scripts/tf-env.sh --google [PROVIDER [FILE]]   the same, with hashicorp/google built by scripts/tool.sh
#   scripts/tf-env.sh --servers [PROVIDER [FILE]]  the same as --mirror, with what the modules "servers" need: dmacvicar/libvirt built by
#                                                  scripts/tool.sh, and a stand-in for bpg/proxmox, which has its schema only
#
# --google and --servers may be combined.
# PROVIDER is the binary (default bin/terraform-provider-nstance), FILE the configuration (default temp/terraform.rc). Standard output has the path of
# FILE:
#
#   export TF_CLI_CONFIG_FILE="$(scripts/tf-env.sh)"
#
# With --mirror the binary is version 0.0.1 in a mirror beside FILE. hashicorp/aws comes from a mirror on this machine ($NSTANCE_TF_MIRROR, else one under
# /opt or in the plugin directories of Terraform), or from its registry if there is no mirror. Other providers come from their registries.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
mirror=
google=
servers=
while :; do
	case ${1:-} in
	--mirror) ;;
	--google) google=yes ;;
	--servers) servers=yes ;;
	*) break ;;
	esac
	mirror=yes
	shift
done
provider=${1:-$root/bin/terraform-provider-nstance}
file=${2:-$root/temp/terraform.rc}

if [ ! -x "$provider" ] || [ -d "$provider" ]; then
	echo "tf-env.sh: $provider is not a program: run 'make build' first" >&2
	exit 1
fi
dir=$(CDPATH='' cd -- "$(dirname -- "$provider")" && pwd)
if [ "$(basename -- "$provider")" != terraform-provider-nstance ]; then
	echo "tf-env.sh: $provider must have the name terraform-provider-nstance, by which the CLIs find it" >&2
	exit 1
fi
mkdir -p "$(dirname -- "$file")"

quoted() { printf %s "$1" | sed 's/[\\"]/\\&/g'; }

if [ -z "$mirror" ]; then
	# An override is for one address, and OpenTofu has its own registry. Other providers are not affected.
	cat >"$file.$$" <<-RC
		disable_checkpoint = true

		provider_installation {
		  dev_overrides {
		    "registry.terraform.io/nstance-kit/nstance" = "$(quoted "$dir")"
		    "registry.opentofu.org/nstance-kit/nstance" = "$(quoted "$dir")"
		  }
		  direct {}
		}
	RC
	mv -f "$file.$$" "$file"
	echo "$file"
	exit 0
fi

platform=$(go env GOOS)_$(go env GOARCH)
into=$(CDPATH='' cd -- "$(dirname -- "$file")" && pwd)/mirror
# A source without a host, such as hashicorp/aws, is in another registry for OpenTofu than for Terraform.
# The layout of a mirror is HOST/NAMESPACE/NAME/VERSION/PLATFORM/binary. Only PLATFORM may be a symbolic link.
hosts="registry.terraform.io registry.opentofu.org"
include=
for host in $hosts; do
	own=$into/$host/nstance-kit/nstance/0.0.1/$platform
	mkdir -p "$own"
	cp -f "$dir/terraform-provider-nstance" "$own/terraform-provider-nstance_v0.0.1.$$"
	mv -f "$own/terraform-provider-nstance_v0.0.1.$$" "$own/terraform-provider-nstance_v0.0.1"
	include="$include${include:+, }\"$host/nstance-kit/nstance\""
done
for place in "${NSTANCE_TF_MIRROR:-}" /opt "$HOME/.terraform.d/plugins" "$HOME/.local/share/terraform/plugins" /usr/local/share/terraform/plugins; do
	[ -d "$place" ] || continue
	found=$(find "$place" -maxdepth 8 -path "*/hashicorp/aws/*/$platform/terraform-provider-aws_v*" 2>/dev/null | sort -V | tail -n 1)
	[ -n "$found" ] || continue
	found=$(dirname -- "$found")
	version=$(basename -- "$(dirname -- "$found")")
	for host in $hosts; do
		aws=$into/$host/hashicorp/aws
		rm -rf "$aws"
		mkdir -p "$aws/$version"
		ln -s "$found" "$aws/$version/$platform"
		include="$include, \"$host/hashicorp/aws\""
	done
	break
done

# built SOURCE VERSION BINARY adds a provider that was built here to the mirror.
built() {
	for host in $hosts; do
		versions=$into/$host/$1
		rm -rf "$versions"
		mkdir -p "$versions/$2"
		ln -s "$(dirname -- "$3")" "$versions/$2/$platform"
		include="$include, \"$host/$1\""
	done
}
if [ -n "$google" ]; then
	built hashicorp/google 5.39.0 "$("$root/scripts/tool.sh" terraform-provider-google)"
fi
if [ -n "$servers" ]; then
	built dmacvicar/libvirt 0.8.3 "$("$root/scripts/tool.sh" terraform-provider-libvirt)"
	proxmox=${into%/mirror}/built/terraform-provider-proxmox
	(cd "$root" && go build -o "$proxmox" ./tests/cloud/fakepve/terraform-provider-proxmox)
	built bpg/proxmox 0.81.0 "$proxmox"
fi

cat >"$file.$$" <<-RC
	disable_checkpoint = true

	provider_installation {
	  filesystem_mirror {
	    path    = "$(quoted "$into")"
	    include = [$include]
	  }
	  direct {
	    exclude = [$include]
	  }
	}
RC
mv -f "$file.$$" "$file"
echo "$file"
