#!/bin/sh
# The user of the server. It owns only the cache.
set -e
getent passwd nstance-server >/dev/null ||
	useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin nstance-server
