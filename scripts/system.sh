# shellcheck shell=sh
# Sourced in the root of the repository: build_system builds Nstance and the system tests. run_system TEST FLAG... also
# runs one of them in place of this shell.

# shellcheck source=scripts/progress.sh
. scripts/progress.sh

build_system() {
	mkdir -p bin/tests
	step "Building Nstance" env GOFLAGS="-v ${GOFLAGS:-}" make -s build GO_BUILD="go build -tags grpcnotrace"
	step "Building the system tests" go test -c -o bin/tests/system ./tests/system
}

run_system() {
	system_test=$1
	shift
	build_system
	exec bin/tests/system -test.run="$system_test" -test.v -bin="${bin:-$PWD/bin}" "$@"
}
