#!/bin/sh
# Regenerate everything in the repository that is generated: protobuf code by buf, the Terraform provider's documents by tfplugindocs, what installs the
# operator by scripts/generate-operator.sh, the rest by go generate.
set -eu
cd "$(dirname -- "$0")/.."

buf=$(scripts/tool.sh buf)
plugins=$(dirname -- "$(scripts/tool.sh protoc-gen-go)")
scripts/tool.sh protoc-gen-go-grpc >/dev/null
PATH=$plugins:$PATH "$buf" generate
go generate ./...
scripts/generate-operator.sh

# The provider's documents, from its schema and its examples. tfplugindocs takes a schema of nobody but hashicorp's.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
plugindocs=$(scripts/tool.sh tfplugindocs)
cli=$(scripts/tool.sh terraform-or-tofu)
go build -o "$work/" ./terraform-provider-nstance
scripts/tf-env.sh "$work/terraform-provider-nstance" "$work/cli.rc" >/dev/null
cat >"$work/main.tf" <<-TF
	terraform {
	  required_providers {
	    nstance = { source = "registry.terraform.io/nstance-kit/nstance" }
	  }
	}
TF
(cd "$work" && TF_CLI_CONFIG_FILE=$work/cli.rc "$cli" providers schema -json >schema.json)
sed -i.bak 's|"registry.terraform.io/nstance-kit/nstance"|"registry.terraform.io/hashicorp/nstance"|' "$work/schema.json"
(cd terraform-provider-nstance && "$plugindocs" generate --provider-name nstance --rendered-provider-name Nstance --providers-schema "$work/schema.json" >"$work/log" 2>&1) || {
	cat "$work/log" >&2
	exit 1
}
