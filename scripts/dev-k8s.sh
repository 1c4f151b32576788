#!/bin/sh
# The Kubernetes API of the development environment, rebuilt and restarted on change. Run by Overmind.
set -eu
exec air -c scripts/air/k8s.toml -- --addr 127.0.0.1:6443 --dir temp/dev-k8s
