#!/bin/sh
# Every test, building what it needs; what CI runs. Each step prints a header and the time it took; the first failure ends it.
#
#   scripts/test.sh          all steps
#   scripts/test.sh STEP...  only these (see the end of this file)
set -eu
cd "$(dirname -- "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# Building the tools is not part of any step's time.
step_tools() {
	for name in buf protoc-gen-go versitygw golangci-lint tofu packer tflint tfplugindocs etcd kube-apiserver capi-core kwok controller-gen helm kubeconform clusterctl; do
		scripts/tool.sh "$name"
	done
}

# What generates must change nothing, whatever else is uncommitted: the tree is compared with itself.
step_generated() {
	tree >"$work/before"
	scripts/generate.sh
	tree >"$work/after"
	diff "$work/before" "$work/after" || {
		echo "generated files were out of date: commit what 'make generate' changed" >&2
		return 1
	}
}
tree() {
	git ls-files -co --exclude-standard | sort -u | while read -r f; do
		[ ! -f "$f" ] || printf '%s %s\n' "$(git hash-object -- "$f")" "$f"
	done
}

step_lint() {
	scripts/lint.sh
}

# The provider and tests/: mostly other people's code around ours, and the race detector triples their time. Stacks and Kubernetes have steps of
# their own.
step_unit() {
	go list ./... | grep -v -e '/services/' -e '/tests/stacks$' -e '/tests/kube$' -e '/tests/operator' -e '/tests/delivery$' | xargs go test -timeout 10m
}

step_race() {
	go test -race -timeout 10m ./services/...
}

# The same worlds in every run. Others are played by make sim and make sim-swarm: what those find is a finding, not a reason to refuse a change.
step_sim() {
	SIM_FIRST=1 SIM_WORLDS=${SIM_WORLDS:-600} go test ./services/internal/sim -run TestWorld -count=1 -timeout=10m -v
}

# A few deliberate bugs, each of which the simulator must catch; all of them: without MUTANTS.
step_mutants() {
	MUTANTS=quick go test -tags mutation ./services/internal/sim -run TestMutants -count=1 -timeout 10m
}

# The provider under the real CLIs. They are given an empty mirror, so that nothing can be fetched from a registry.
step_acceptance() {
	mkdir -p "$work/mirror"
	cat >"$work/terraform.rc" <<-RC
		disable_checkpoint = true
		provider_installation {
		  filesystem_mirror {
		    path = "$work/mirror"
		  }
		}
	RC
	export TF_CLI_CONFIG_FILE="$work/terraform.rc" TF_ACC=1
	tofu=$(scripts/tool.sh tofu)
	echo "-- $tofu"
	TF_ACC_TERRAFORM_PATH=$tofu TF_ACC_PROVIDER_HOST=registry.opentofu.org acceptance
	if terraform=$(command -v terraform); then
		echo "-- $terraform"
		TF_ACC_TERRAFORM_PATH=$terraform acceptance
	else
		echo "-- terraform is not on PATH: only tofu was tested"
	fi
}
acceptance() {
	go test ./terraform-provider-nstance/... -run '^TestAcc' -count=1 -timeout 10m
}

# The Terraform modules, with mocked providers.
step_modules() {
	scripts/modules.sh
}

step_demo() {
	scripts/nstance-dev.sh demo
}

# The examples, applied to a cloud on this machine, used and destroyed.
step_stacks() {
	go test ./tests/stacks -count=1 -timeout 20m
}

# What `make test-aws` adds to modules, images and stacks; in the whole run unit and race have it.
step_cloud() {
	go test ./tests/cloud/... ./tests/modules/... ./services/internal/infra/aws/... ./services/contract/secretstore/... ./services/contract/keyring/... \
		./services/internal/agent/notice/... -timeout 10m
}

# The operator on a real Kubernetes with Cluster API, with real servers of two shards; and what installs it.
step_kube() {
	scripts/k8s-check.sh
	go test ./tests/kube ./tests/delivery ./tests/operator/... -count=1 -p 1 -timeout 20m
}

# What `make test-k8s` adds to kube; in the whole run race has it.
step_operator() {
	go test ./services/internal/operator/... ./services/internal/dev/k8s/... ./services/api/... ./services/cmd/dev-k8s ./services/cmd/nstance-operator -timeout 10m
}

step_images() {
	scripts/images-check.sh
}

# Real processes in network namespaces, broken one way after the other.
step_chaos() {
	scripts/chaos.sh
}

# What docs/evidence/performance.md is measured with, in short.
step_bench() {
	scripts/bench.sh short
}

# With an heir: how long there is no leader, on a machine that may be busy.
step_failover() {
	tests/failover/run.sh -rounds=3 -most=5s
	tests/failover/run.sh -rounds=1 -most=5s -how=kill -records=100
}

step_kill9() {
	tests/kill9/run.sh
}

# The status is taken from a process of its own: under `if` or `||` a shell ignores set -e.
run() {
	printf '\n==> %s\n' "$1"
	start=$(date +%s)
	status=0
	set +e
	(
		set -e
		"step_$1"
	)
	status=$?
	set -e
	took=$(($(date +%s) - start))
	if [ "$status" -ne 0 ]; then
		printf '==> %s FAILED after %d s\n' "$1" "$took" >&2
		exit 1
	fi
	printf '==> %s ok, %d s\n' "$1" "$took"
	summary="$summary$(printf '  %-12s %4d s' "$1" "$took")
"
}

summary=
[ $# -gt 0 ] || set -- tools generated lint unit race sim mutants bench acceptance modules images stacks kube demo kill9 failover chaos
for step; do
	run "$step"
done
printf '\nall passed\n%s' "$summary"
