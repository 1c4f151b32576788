#!/bin/sh
# Check the Terraform modules and their examples: format, tflint, validation, and the tests of the modules.
#
#   scripts/modules.sh [MODULE...]    such as aws/network; default: all
#
# No cloud is needed: providers are mocked, and hashicorp/aws, hashicorp/google and dmacvicar/libvirt check every argument. scripts/tf-env.sh says
# where they come from.
set -eu
cd "$(dirname -- "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

tofu=$(scripts/tool.sh tofu)
tflint=$(scripts/tool.sh tflint)
terraform=$(command -v terraform) || {
	echo "modules.sh: terraform is NOT TESTED, because it is not on PATH: tofu runs its part"
	terraform=$tofu
}

go build -tags grpcnotrace -o "$work/bin/terraform-provider-nstance" ./terraform-provider-nstance
providers=--mirror
case "$#$*" in
0* | *gcp/*) providers="$providers --google" ;;
esac
case "$#$*" in
0* | */servers*) providers="$providers --servers" ;;
esac
# shellcheck disable=SC2086 # a list
TF_CLI_CONFIG_FILE=$(scripts/tf-env.sh $providers "$work/bin/terraform-provider-nstance" "$work/terraform.rc")
export TF_CLI_CONFIG_FILE TF_IN_AUTOMATION=1

# init writes files into a copy, not into the clone.
mkdir -p "$work/examples"
cp -R modules "$work/"
cp -R examples/aws examples/gcp examples/multi-cloud examples/onprem "$work/examples/"
find "$work/modules" "$work/examples" -name '.terraform*' -prune -exec rm -rf {} +

prepare() { # CLI DIRECTORY
	"$1" -chdir="$2" init -backend=false -input=false -no-color >"$work/init.log" 2>&1 || {
		cat "$work/init.log" >&2
		return 1
	}
}

all=
[ $# -gt 0 ] || all=yes
[ -z "$all" ] || set -- aws/account aws/cluster aws/federation aws/network aws/shard gcp/account gcp/cluster gcp/federation gcp/network gcp/shard libvirt/servers onprem/shard proxmox/servers

if [ -n "$all" ]; then
	echo "-- format"
	"$tofu" fmt -check -diff -recursive modules
	"$tofu" fmt -check -diff -recursive examples
	for dir in modules/*/* examples/aws/single-shard examples/aws/multi-az examples/aws/environments/*/ examples/gcp/single-shard examples/gcp/multi-zone examples/gcp/environments/*/ examples/multi-cloud examples/onprem/*/; do
		echo "-- tflint $dir"
		"$tflint" --config="$PWD/.tflint.hcl" --chdir="$dir"
	done
	for example in aws/single-shard aws/multi-az aws/environments/staging aws/environments/production gcp/single-shard gcp/multi-zone gcp/environments/staging gcp/environments/production multi-cloud onprem/libvirt onprem/proxmox; do
		cli=$tofu
		case $example in
		*/multi-*) cli=$terraform ;;
		esac
		echo "-- $(basename "$cli") validate examples/$example"
		prepare "$cli" "$work/examples/$example"
		"$cli" -chdir="$work/examples/$example" validate -no-color
	done
fi

for module; do
	# terraform cannot mock ephemeral resources, which these modules have.
	case $module in
	aws/cluster | aws/account) cli=$tofu ;;
	*) cli=$terraform ;;
	esac
	echo "-- $(basename "$cli") test modules/$module"
	prepare "$cli" "$work/modules/$module"
	"$cli" -chdir="$work/modules/$module" test -no-color
done

if [ -n "$all" ]; then
	# The CLIs differ in what they know at plan.
	echo "-- tofu test modules/aws/shard with a new network"
	prepare "$tofu" "$work/modules/aws/shard"
	"$tofu" -chdir="$work/modules/aws/shard" test -no-color -filter=tests/new_network.tftest.hcl

	for dir in examples/aws/*/tests examples/gcp/*/tests examples/onprem/*/tests; do
		example=$work/$(dirname -- "$dir")
		echo "-- tofu test $(dirname -- "$dir")"
		prepare "$tofu" "$example"
		"$tofu" -chdir="$example" test -no-color
	done
fi
