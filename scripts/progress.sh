# shellcheck shell=sh
# Sourced: step TITLE COMMAND... runs a command and shows its progress. It shows the output only if the command fails.

step() {
	step_title=$1
	shift
	step_log=$(mktemp)
	step_start=$(date +%s)
	"$@" >"$step_log" 2>&1 &
	step_pid=$!
	# Ctrl-C ends the command too. Its output is not needed then.
	trap 'kill "$step_pid" 2>/dev/null || true; rm -f "$step_log"; echo; exit 130' INT TERM HUP
	step_ticks=0
	while kill -0 "$step_pid" 2>/dev/null; do
		step_elapsed=$(($(date +%s) - step_start))
		if [ -t 1 ]; then
			printf '\r  %-60s %4d s  %s' "$step_title" "$step_elapsed" "$(step_count)"
		elif [ $((step_ticks % 50)) -eq 49 ]; then
			printf '  %s ... %d s  %s\n' "$step_title" "$step_elapsed" "$(step_count)"
		fi
		step_ticks=$((step_ticks + 1))
		sleep 0.2
	done
	step_status=0
	wait "$step_pid" || step_status=$?
	trap - INT TERM HUP
	[ ! -t 1 ] || printf '\r'
	printf '  %-60s %4d s                         \n' "$step_title" "$(($(date +%s) - step_start))"
	if [ "$step_status" -ne 0 ]; then
		cat "$step_log" >&2
		echo "$step_title: failed with status $step_status" >&2
	fi
	rm -f "$step_log"
	return "$step_status"
}

# step_count prints the number of compiled packages: go build -v prints one line for each.
step_count() {
	step_lines=$(grep -c '^[a-z].*[a-z]$' "$step_log" 2>/dev/null) || step_lines=0
	[ "$step_lines" -eq 0 ] || printf '%s packages' "$step_lines"
}

# need PROGRAM HOW exits with HOW to install the program, if it is not on PATH.
need() {
	command -v "$1" >/dev/null || {
		echo "$1 is needed: $2" >&2
		exit 1
	}
}

# build_guest makes the small guest of images/local in bin/guest.
build_guest() {
	step "Building the agent of the guest" env CGO_ENABLED=0 \
		go build -tags grpcnotrace -ldflags '-s -w' -o bin/guest/nstance-agent ./services/cmd/nstance-agent
	step "Making the guest" images/local/guest.sh bin/guest/nstance-agent bin/guest
}

# prepare checks and builds what nstance-dev needs. It sets $terraform to the path of tofu or terraform, unless $terraform has a value.
prepare() {
	need go "https://go.dev/dl (Go downloads the version that go.mod names, if it is newer)"
	need tmux "Debian: apt-get install tmux; macOS: brew install tmux"
	if [ -z "${terraform:-}" ]; then
		if ! command -v tofu >/dev/null && ! command -v terraform >/dev/null; then
			step "Building tofu, once: neither tofu nor terraform is on PATH" env GOFLAGS=-v scripts/tool.sh terraform-or-tofu
		fi
		terraform=$(scripts/tool.sh terraform-or-tofu)
	fi
	build_trial
}

# build_trial builds the programs of a trial cluster in bin/trial, without the clouds that such a cluster does not use.
build_trial() {
	step "Building Nstance" env GOFLAGS="-v ${GOFLAGS:-}" go build -tags grpcnotrace,trial -ldflags '-s -w' -o bin/trial/ \
		./services/cmd/nstance-server ./services/cmd/nstance-agent ./services/cmd/nstance-admin ./services/cmd/nstance-dev \
		./services/cmd/dev-s3 ./terraform-provider-nstance
}
