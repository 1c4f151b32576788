#!/bin/sh
# Run all static checks, also after one has failed.
set -eu
cd "$(dirname -- "$0")/.."

failed=
run() { # NAME COMMAND... prints the name, runs the command and records a failure
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

# buf_breaking compares the API with the API on the main branch.
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
		# Boot scripts in testdata and the import examples of the registry are not run as they are.
		git ls-files -co --exclude-standard '*.sh' ':!:*/testdata/*' ':!:terraform-provider-nstance/examples/*'
		echo .ci/run
	} | xargs shellcheck -x
}

# spelling checks the documents. golangci-lint checks the spelling of Go code.
spelling() {
	git ls-files -co --exclude-standard '*.md' '*.tf' '*.tmpl' '*.html' | while read -r f; do [ ! -f "$f" ] || echo "$f"; done |
		xargs "$misspell" -error
}

buf=$(scripts/tool.sh buf)
misspell=$(scripts/tool.sh misspell)
golangci_lint=$(scripts/tool.sh golangci-lint)
actionlint=$(scripts/tool.sh actionlint)

run gofmt gofmt_clean
run golangci-lint "$golangci_lint" run --allow-parallel-runners ./...
for module in images/container scripts/release; do
	run "golangci-lint of $module" env -C "$module" "$golangci_lint" run --allow-parallel-runners ./...
done
run buf-lint "$buf" lint
run buf-breaking buf_breaking
run actionlint "$actionlint"
run spelling spelling
if command -v shellcheck >/dev/null; then
	run shellcheck shell_scripts
else
	echo "lint: shellcheck is not installed: the scripts are NOT CHECKED (Debian: apt-get install shellcheck)"
fi

[ -z "$failed" ] || {
	echo "lint: failed:$failed" >&2
	exit 1
}
