#!/bin/sh
# Static checks, all of them run even when one fails.
set -eu
cd "$(dirname -- "$0")/.."

failed=
run() { # NAME COMMAND...: announce, run, remember a failure
	name=$1
	shift
	echo "lint: $name"
	"$@" || failed="$failed $name"
}

gofmt_clean() {
	files=$(git ls-files -co --exclude-standard '*.go' | while read -r f; do [ ! -f "$f" ] || echo "$f"; done)
	unformatted=$(echo "$files" | xargs gofmt -l)
	[ -z "$unformatted" ] || {
		echo "not gofmt-ed:" >&2
		echo "$unformatted" >&2
		return 1
	}
}

# The API as committed on the branch that changes are merged into; nothing to compare with before its first commit there.
buf_breaking() {
	for ref in refs/remotes/origin/main refs/heads/main; do
		git rev-parse -q --verify "$ref:services/api" >/dev/null || continue
		against=$(mktemp -d)
		git archive "$ref" buf.yaml services/api | tar -x -C "$against"
		status=0
		"$buf" breaking --against "$against" || status=$?
		rm -rf "$against"
		return "$status"
	done
}

shell_scripts() {
	{
		# Golden boot scripts and the registry's import examples are no scripts of ours to run.
		git ls-files -co --exclude-standard '*.sh' ':!:*/testdata/*' ':!:terraform-provider-nstance/examples/*'
		echo .ci/run
	} | xargs shellcheck -x
}

buf=$(scripts/tool.sh buf)
golangci_lint=$(scripts/tool.sh golangci-lint)

run gofmt gofmt_clean
run vet go vet ./...
run golangci-lint "$golangci_lint" run --allow-parallel-runners ./...
run buf-lint "$buf" lint
run buf-breaking buf_breaking
if command -v shellcheck >/dev/null; then
	run shellcheck shell_scripts
else
	echo "lint: shellcheck is not installed, scripts not checked (Debian: apt-get install shellcheck)"
fi

[ -z "$failed" ] || {
	echo "lint: failed:$failed" >&2
	exit 1
}
