#!/bin/sh
# Publish dist/ as a release on GitHub, with the section of the changelog as its text.
#
#   VERSION      such as v0.2.0; its tag must exist
#   GH_TOKEN     token of the GitHub CLI
set -eu
cd "$(dirname -- "$0")/.."

version=${VERSION:?is not set, for example VERSION=v0.2.0}
(cd dist && sha256sum --quiet -c SHA256SUMS)
grep -q " nstance_${version#v}_provenance.json\$" dist/SHA256SUMS || {
	echo "publish.sh: dist is not the release $version: run make release VERSION=$version" >&2
	exit 1
}
notes=$(mktemp)
trap 'rm -f "$notes"' EXIT
awk -v version="${version#v}" '/^## / { on = index($0, "## [" version "]") == 1; next } on' CHANGELOG.md >"$notes"
set -- --verify-tag --title "$version" --notes-file "$notes"
case $version in *-*) set -- --prerelease "$@" ;; esac
gh release create "$version" "$@" dist/*
