#!/bin/sh
# Run the commands of pages literally: every block of the language sh, in order, in one shell at the root of a clone.
# They use temp/ and the ports of `make up`, and edit examples/local. Other tests read examples/local at the same time,
# so the clone is a copy of this one.
set -eu
cd "$(dirname -- "$0")/.."
work=$(mktemp -d)
trap 'make -s -C "$work/clone" down >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$work/clone"
git ls-files -co --exclude-standard -z | tar -c --null --ignore-failed-read -T - | tar -x -C "$work/clone"
cd "$work/clone"

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
