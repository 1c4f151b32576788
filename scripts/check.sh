#!/bin/sh
# Check for the programs that development needs, and print how to get missing ones. Optional programs do not fail the check.
set -eu
cd "$(dirname -- "$0")/.."

missing=0
have() { printf '  ok       %-10s %s\n' "$1" "$2"; }
lack() {
	printf '  MISSING  %-10s %s\n' "$1" "$2"
	missing=1
}
optional() { printf '  optional %-10s %s\n' "$1" "$2"; }

want=$(awk '$1 == "go" { print $2 }' go.mod)
if command -v go >/dev/null; then
	got=$(go env GOVERSION | sed 's/^go//')
	if [ "$(printf '%s\n%s\n' "$want" "$got" | sort -V | head -n 1)" = "$want" ]; then
		have go "$got"
	else
		lack go "$got is too old, $want is needed: https://go.dev/dl"
	fi
else
	lack go "$want or later: https://go.dev/dl"
fi

if command -v tmux >/dev/null; then
	have tmux "$(tmux -V)"
else
	lack tmux "Debian: apt-get install tmux; macOS: brew install tmux"
fi

if command -v kubectl >/dev/null; then
	have kubectl "$(command -v kubectl)"
else
	optional kubectl "for make kind, and to look at the objects of make dev-tmux-k8s: https://kubernetes.io/docs/tasks/tools"
fi

# Both are pinned Go modules under tests/tools. The first call builds them.
for name in air overmind; do
	if path=$(scripts/tool.sh "$name"); then
		have "$name" "$path"
	else
		lack "$name" "its build failed: run scripts/tool.sh $name"
	fi
done

exit "$missing"
