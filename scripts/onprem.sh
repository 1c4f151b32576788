#!/bin/sh
# Follow docs/start/onprem.md literally: run its shell commands and check what they print. They run in a new network
# namespace. It needs root and Debian.
set -eu
cd "$(dirname -- "$0")/.."
[ ! -e temp ] || {
	echo "onprem.sh: temp/ is there: run make down first" >&2
	exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
awk '/^```sh$/ { on = 1; next } /^```$/ { on = 0 } on' docs/start/onprem.md >"$work/page.sh"
status=0
# shellcheck disable=SC2016 # The inner shell expands $1.
unshare --net -- sh -c 'ip link set lo up && exec timeout 900 sh -eux "$1"' sh "$work/page.sh" \
	>"$work/out" 2>"$work/err" || status=$?
cat "$work/out"
[ "$status" -eq 0 ] || {
	tail -n 40 "$work/err" >&2
	make -s down
	echo "onprem.sh: a command of docs/start/onprem.md failed with status $status" >&2
	exit 1
}

# lists N prints the healthy instances of the Nth list on the page.
lists() {
	awk -v n="$1" '/^INSTANCE +GROUP/ { list++ } list == n && $3 == "healthy" { print $1 }' "$work/out" | sort
}
fail() {
	echo "onprem.sh: $*" >&2
	exit 1
}
n=0
for list in 2 3 5 6; do # make up prints the lists 1 and 4
	n=$((n + 1))
	lists "$list" >"$work/list$n"
done
[ "$(wc -l <"$work/list1")" = 2 ] || fail "the first list does not have two healthy instances"
[ "$(wc -l <"$work/list2")" = 2 ] || fail "the second list does not have two healthy instances"
[ "$(comm -12 "$work/list1" "$work/list2" | wc -l)" = 1 ] || fail "not exactly one VM was replaced after a kill"
cmp -s "$work/list2" "$work/list3" || fail "the VMs are not the same after a server was killed"
[ "$(comm -12 "$work/list3" "$work/list4" | wc -l)" = 2 ] || fail "a VM was replaced when one was added"
[ "$(wc -l <"$work/list4")" = 3 ] || fail "no VM was added to the two"
[ ! -e temp ] || fail "temp/ is left"
! pgrep -f "$PWD/temp/" >/dev/null || fail "processes are left: $(pgrep -af "$PWD/temp/")"
echo "docs/start/onprem.md: every command did what the page says"
