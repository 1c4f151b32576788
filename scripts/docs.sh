#!/bin/sh
# Build the documentation as a static site: scripts/docs.sh [DIRECTORY], by default temp/site. Links are checked.
set -eu
cd "$(dirname -- "$0")/.."
out=${1:-temp/site}
mkdir -p "$out"
out=$(cd "$out" && pwd)
"$(scripts/tool.sh hugo)" --source docs/site --destination "$out" --cleanDestinationDir --noBuildLock --panicOnWarning --quiet
cp "$(scripts/tool.sh minisearch)" "$out/minisearch.js"
go test ./tests/site -count=1 -args -site="$out" -chromium="$(command -v chromium || true)"
echo "The site is in $out: open $out/index.html, or serve it with: python3 -m http.server -d $out 8000"
