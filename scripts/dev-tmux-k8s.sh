#!/bin/sh
# Run the development environment with dev-k8s and nstance-operator.
set -eu
cd "$(dirname -- "$0")/.."
exec scripts/dev-tmux.sh Procfile.dev-k8s
