#!/bin/sh
# Check the programs against the Go vulnerability database (https://vuln.go.dev), over the network. Only vulnerable code that the programs call is a failure.
set -eu
cd "$(dirname -- "$0")/.."

govulncheck=$(scripts/tool.sh govulncheck)
"$govulncheck" -tags grpcnotrace ./services/... ./terraform-provider-nstance/...
"$govulncheck" -C images/container ./...
