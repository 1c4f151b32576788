#!/bin/sh
# Verify what development needs, and say how to get what is missing.
set -eu
cd "$(dirname -- "$0")/.."

missing=0
have() { printf '  ok       %-10s %s\n' "$1" "$2"; }
lack() {
	printf '  MISSING  %-10s %s\n' "$1" "$2"
	missing=1
}

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
	lack kubectl "for dev-tmux-k8s and the tests: https://kubernetes.io/docs/tasks/tools"
fi

# Both are Go modules pinned under tests/tools: built when no build is cached.
for name in air overmind; do
	if path=$(scripts/tool.sh "$name"); then
		have "$name" "$path"
	else
		lack "$name" "its build failed: run scripts/tool.sh $name"
	fi
done

exit "$missing"
