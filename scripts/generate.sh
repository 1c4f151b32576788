#!/bin/sh
# Regenerate everything in the repository that is generated: protobuf code by buf, the rest by go generate.
set -eu
cd "$(dirname -- "$0")/.."

buf=$(scripts/tool.sh buf)
plugins=$(dirname -- "$(scripts/tool.sh protoc-gen-go)")
scripts/tool.sh protoc-gen-go-grpc >/dev/null
PATH=$plugins:$PATH "$buf" generate
go generate ./...
