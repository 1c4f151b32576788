#!/bin/sh
# Run the commands of pages literally: every block of the language sh, in order, in one shell at the root of the clone.
# They use temp/ and the ports of `make up`.
set -eu
cd "$(dirname -- "$0")/.."
[ ! -e temp ] || {
	echo "pages-check.sh: temp/ exists: a cluster may be running (make down, make clean-dev)" >&2
	exit 1
}
work=$(mktemp -d)
trap 'make -s down >/dev/null 2>&1 || true; rm -rf "$work" examples/local/*_override.tf*' EXIT
trap 'exit 1' HUP INT TERM

for page in docs/start/quick-start.md docs/start/practise.md; do
	echo "-- $page"
	awk '/^```sh$/ { on = 1; next } /^```$/ { on = 0 } on' "$page" >"$work/page.sh"
	[ -s "$work/page.sh" ] || {
		echo "pages-check.sh: $page has no commands" >&2
		exit 1
	}
	sh -eux "$work/page.sh"
	[ ! -e temp ] || {
		echo "pages-check.sh: temp/ is left" >&2
		exit 1
	}
done
