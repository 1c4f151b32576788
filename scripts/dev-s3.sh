#!/bin/sh
# The object store of the development environment, rebuilt and restarted on change. Run by Overmind.
set -eu
exec air -c scripts/air/s3.toml -- --addr 127.0.0.1:8989 --dir temp/dev-s3
