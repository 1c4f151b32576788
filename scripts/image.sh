#!/bin/sh
# Build the binary of a role and a machine image with it, with Packer: make image ROLE=server|agent ARCH=arm64|amd64 ON=aws|gcp|qemu [VERSION=…]
# Further arguments are passed to `packer build`: scripts/image.sh -var aws_region=eu-west-1.
set -eu
cd "$(dirname -- "$0")/.."

role=${ROLE:-}
arch=${ARCH:-arm64}
version=${VERSION:-$(git describe --tags --always --dirty)}
case $role in server | agent) ;; *)
	echo "usage: make image ROLE=server|agent ARCH=arm64|amd64 ON=aws|gcp|qemu" >&2
	exit 2
	;;
esac
case ${ON:-} in aws) only='amazon-ebs.*' ;; gcp) only='googlecompute.*' ;; qemu) only='qemu.*' ;; *)
	echo "usage: make image ROLE=server|agent ARCH=arm64|amd64 ON=aws|gcp|qemu" >&2
	exit 2
	;;
esac

binary=$PWD/bin/linux-$arch/nstance-$role
mkdir -p "$(dirname "$binary")"
echo "building $binary"
GOOS=linux GOARCH=$arch CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags "-s -w -X main.version=$version" -o "$binary" "./services/cmd/nstance-$role"

go version -m "$binary" >"$binary.modules"

packer=$(command -v packer || scripts/tool.sh packer)
cd images/packer
# The Packer of scripts/tool.sh has the plugins built in and needs no init.
[ "$packer" != "$(command -v packer || true)" ] || "$packer" init .
exec "$packer" build -only="$only" -var "role=$role" -var "arch=$arch" -var "version=$version" -var "binary=$binary" \
	-var "modules=$binary.modules" -var "commit=$(git describe --always --abbrev=40 --dirty --exclude='*')" "$@" .
