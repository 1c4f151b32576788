#!/bin/sh
# Run the Kubernetes API of the development environment, with rebuild and restart on change. Overmind calls this script.
set -eu
exec air -c scripts/air/k8s.toml -- --addr 127.0.0.1:6443 --dir temp/dev-k8s
