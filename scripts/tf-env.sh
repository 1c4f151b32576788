#!/bin/sh
# Write a CLI configuration with which Terraform and OpenTofu use a provider binary that was just built, without init and without a registry.
#
#   scripts/tf-env.sh [PROVIDER [FILE]]
#
# PROVIDER is the binary (default bin/terraform-provider-nstance), FILE what is written (default temp/terraform.rc). The path of FILE goes to
# stdout:
#
#   export TF_CLI_CONFIG_FILE="$(scripts/tf-env.sh)"
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
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

# The overrides are per address, and OpenTofu has a registry of its own. Whatever else a configuration needs comes from where it always does.
quoted=$(printf %s "$dir" | sed 's/[\\"]/\\&/g')
cat >"$file.$$" <<RC
disable_checkpoint = true

provider_installation {
  dev_overrides {
    "registry.terraform.io/nstance-kit/nstance" = "$quoted"
    "registry.opentofu.org/nstance-kit/nstance" = "$quoted"
  }
  direct {}
}
RC
mv -f "$file.$$" "$file"
echo "$file"
