#!/bin/sh
# Run the object store of the development environment, with rebuild and restart on change. Overmind calls this script.
set -eu
exec air -c scripts/air/s3.toml -- --addr 127.0.0.1:8989 --dir temp/dev-s3
