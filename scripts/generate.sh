#!/bin/sh
# Regenerate all generated files: protobuf code with buf, the references of RPCs and Kubernetes objects with protoc-gen-doc and crd-ref-docs, the
# comments of the protocol that the OpenAPI document has with protoc-gen-doc, the documents of the Terraform provider with tfplugindocs, the files
# that install the operator with scripts/generate-operator.sh, the rest with go generate.
set -eu
cd "$(dirname -- "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

buf=$(scripts/tool.sh buf)
plugins=$(dirname -- "$(scripts/tool.sh protoc-gen-go)")
scripts/tool.sh protoc-gen-go-grpc >/dev/null
PATH=$plugins:$PATH "$buf" generate
PATH=$(dirname -- "$(scripts/tool.sh protoc-gen-doc)"):$PATH "$buf" generate --template scripts/reference/buf.gen.yaml
go generate ./...
scripts/generate-operator.sh

"$(scripts/tool.sh crd-ref-docs)" --source-path=services/api/v1beta1 --config=scripts/reference/crds.yaml --templates-dir=scripts/reference/crds \
	--renderer=markdown --output-path="$work/crds.md" --log-level=ERROR
sed 's/ *$//; s|<br />| |g' "$work/crds.md" >docs/reference/kubernetes-objects.md

# The documents of the provider are made from its schema and its examples. tfplugindocs accepts only a schema of a provider in hashicorp/.
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
