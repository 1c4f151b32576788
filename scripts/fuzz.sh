#!/bin/sh
# Fuzz every parser of untrusted input, one after the other: scripts/fuzz.sh [DURATION] [PATTERN]
#
#   DURATION   of each target, default 3m
#   PATTERN    only targets whose "package.Name" matches this regular expression of grep -E
#
# Go writes an input that fails to testdata/fuzz of the package, where every test run uses it. `go run ./tests/corpus` adds inputs that reach code which
# the seeds do not reach. -fuzzminimizetime bounds the time for making an input smaller, which is a minute by default.
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
