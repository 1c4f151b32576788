#!/bin/sh
# Fuzzes every parser of outside bytes, one after the other: scripts/fuzz.sh [DURATION] [PATTERN]
#
#   DURATION   of each target, default 3m
#   PATTERN    only targets whose "package.Name" matches this regular expression of grep -E
#
# What makes a target fail is kept by Go as a file below its testdata/fuzz, and from then on is part of every test run. `go run ./tests/corpus` afterwards
# keeps there, too, the few inputs that reach what the seeds do not. Without a limit of its own, making one such input smaller may take a minute of the three.
set -eu
cd "$(dirname -- "$0")/.."
duration=${1:-3m}
pattern=${2:-.}

targets=$(grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' services terraform-provider-nstance tests | sed 's|/[^/]*_test.go:func |.|' | sort -u | grep -E "$pattern")
total=$(printf '%s\n' "$targets" | wc -l)
n=0
failed=
for target in $targets; do
	n=$((n + 1))
	package=${target%.Fuzz*}
	name=Fuzz${target##*.Fuzz}
	printf '[%d/%d] %s %s\n' "$n" "$total" "$package" "$name"
	if ! go test "./$package" -run '^$' -fuzz "^$name\$" -fuzztime "$duration" -fuzzminimizetime 2s -timeout 0; then
		failed="$failed $package.$name"
	fi
done
if [ -n "$failed" ]; then
	echo "failed:$failed" >&2
	exit 1
fi
echo "all $total targets ran for $duration without a finding"
