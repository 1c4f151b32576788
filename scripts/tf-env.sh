#!/bin/sh
# Write a CLI configuration with which Terraform and OpenTofu use a provider binary that was just built.
#
#   scripts/tf-env.sh [PROVIDER [FILE]]            without init and without a registry
#   scripts/tf-env.sh --mirror [PROVIDER [FILE]]   for configurations that need other providers too, and hence init
#
# PROVIDER is the binary (default bin/terraform-provider-nstance), FILE what is written (default temp/terraform.rc). The path of FILE goes to
# stdout:
#
#   export TF_CLI_CONFIG_FILE="$(scripts/tf-env.sh)"
#
# With --mirror the binary is offered as version 0.0.1 from a mirror beside FILE. hashicorp/aws is taken from a mirror on this machine where there is
# one ($NSTANCE_TF_MIRROR, else searched under /opt and in Terraform's own places), else from its registry, as everything else.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
mirror=
if [ "${1:-}" = --mirror ]; then
	mirror=yes
	shift
fi
provider=${1:-$root/bin/terraform-provider-nstance}
file=${2:-$root/temp/terraform.rc}

if [ ! -x "$provider" ] || [ -d "$provider" ]; then
	echo "tf-env.sh: $provider is no program: run 'make build' first" >&2
	exit 1
fi
dir=$(CDPATH='' cd -- "$(dirname -- "$provider")" && pwd)
if [ "$(basename -- "$provider")" != terraform-provider-nstance ]; then
	echo "tf-env.sh: the CLIs find a provider by its name: $provider has to be called terraform-provider-nstance" >&2
	exit 1
fi
mkdir -p "$(dirname -- "$file")"

quoted() { printf %s "$1" | sed 's/[\\"]/\\&/g'; }

if [ -z "$mirror" ]; then
	# The overrides are per address, and OpenTofu has a registry of its own. Whatever else a configuration needs comes from where it always does.
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
own=$into/registry.terraform.io/nstance-kit/nstance/0.0.1/$platform
mkdir -p "$own"
cp -f "$dir/terraform-provider-nstance" "$own/terraform-provider-nstance_v0.0.1.$$"
mv -f "$own/terraform-provider-nstance_v0.0.1.$$" "$own/terraform-provider-nstance_v0.0.1"

# A mirror is unpacked: HOST/NAMESPACE/NAME/VERSION/PLATFORM/binary. Only its last level may be a symbolic link.
elsewhere=
for place in "${NSTANCE_TF_MIRROR:-}" /opt "$HOME/.terraform.d/plugins" "$HOME/.local/share/terraform/plugins" /usr/local/share/terraform/plugins; do
	[ -d "$place" ] || continue
	found=$(find "$place" -maxdepth 8 -path "*/registry.terraform.io/hashicorp/aws/*/$platform/terraform-provider-aws_v*" 2>/dev/null | sort -V | tail -n 1)
	[ -n "$found" ] || continue
	found=$(dirname -- "$found")
	version=$(basename -- "$(dirname -- "$found")")
	aws=$into/registry.terraform.io/hashicorp/aws
	rm -rf "$aws"
	mkdir -p "$aws/$version"
	ln -s "$found" "$aws/$version/$platform"
	elsewhere='"registry.terraform.io/hashicorp/aws", '
	break
done

include="[$elsewhere\"registry.terraform.io/nstance-kit/nstance\"]"
cat >"$file.$$" <<-RC
	disable_checkpoint = true

	provider_installation {
	  filesystem_mirror {
	    path    = "$(quoted "$into")"
	    include = $include
	  }
	  direct {
	    exclude = $include
	  }
	}
RC
mv -f "$file.$$" "$file"
echo "$file"
