#!/bin/sh
# Make the user of the server, which owns only the cache.
set -e
getent passwd nstance-server >/dev/null ||
	useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin nstance-server
