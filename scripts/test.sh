#!/bin/sh
# Run tests, building what they need. Each step prints a header and its time; the first failure ends the run.
#
#   scripts/test.sh            what `make test` runs: needs Go, make and tmux
#   scripts/test.sh rest       everything else: clouds, stacks, Kubernetes, images, faults, benchmarks, lint
#   scripts/test.sh all        both, as `make test-all`
#   scripts/test.sh STEP...    some steps (see the end of this file)
#   scripts/test.sh STEP FLAG...  a step of the system tests with flags, such as -keep, which keeps the directory
set -eu
cd "$(dirname -- "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# The flags of a release. With the same flags everywhere, Go compiles each package once for all steps.
case " ${GOFLAGS:-} " in
*grpcnotrace*) ;;
*) export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -tags=grpcnotrace" ;;
esac
# More memory for a sixth to a third less processor time. With more than this, compilers need gigabytes.
export GOGC=200

# Packages with goroutines that share state. They run under the race detector, which triples their time.
race='server server/act/execute server/act/leader server/health server/infra/mock server/infra/tmux server/journal/localdb server/lead/lease
	server/lead/peer server/serve/agentapi server/serve/operatorapi server/serve/registerapi server/serve/transport server/shardconfig
	server/shardstate server/watch daemon/tasks agent operator/shards'

# Packages with tests that take minutes. `make test` runs them with -short: fewer random cases, no attacks, no kills. The step long runs all, so
# they are not in unit if long follows.
# serve/transport and operator/shards have such tests too: the step race runs them with -short.
long='proof/bench proof/histories server/plan server/lead/election operator operator/pool operator/machine operator/drain operator/ondemand'

# Packages of other steps. services/internal/proof/sim has the step sim; the others are in the rest.
others='/services/internal/proof/sim$|/infra/libvirt/hosttest$|/tests/stacks|/tests/kube$|/tests/operator|/tests/delivery|/tests/cloud/|/tests/modules$'

internal() {
	for name; do
		echo "./services/internal/$name"
	done
}

# Building the tools is not part of the time of any other step.
step_tools() {
	for name in tofu versitygw; do
		scripts/tool.sh "$name"
	done
}

# All unit, property and conformance tests. TestKubectl needs kubectl and is in the step install. TestCRDSchema needs a real API server, which
# takes minutes to build: it is in the step long.
step_unit() {
	# shellcheck disable=SC2086 # lists of words
	internal $race $long | xargs go list >"$work/elsewhere"
	go list ./... | grep -E -v "$others" | grep -v -x -F -f "$work/elsewhere" | xargs go test -timeout 10m -skip '^(TestKubectl|TestCRDSchema)$'
	# shellcheck disable=SC2086
	[ "${long_follows:-}" ] || internal $long | xargs go test -short -timeout 10m
}

step_race() {
	# shellcheck disable=SC2086
	internal $race | CGO_ENABLED=1 xargs go test -race -short -timeout 10m
}

step_long() {
	# shellcheck disable=SC2086
	internal $long server/serve/transport operator/shards | xargs go test -timeout 15m ./services/api/v1beta1
}

# The same simulations in every run. `make sim` and `make sim-swarm` run others: a fault that they find must not block
# an unrelated change.
step_sim() {
	SIM_FIRST=1 SIM_WORLDS=${SIM_WORLDS:-400} go test ./services/internal/proof/sim -count=1 -timeout 10m -v
}

# The Terraform provider under tofu. An empty mirror makes sure that nothing comes from a registry.
step_acceptance() {
	acceptance "$(scripts/tool.sh tofu)" registry.opentofu.org
}

# The Terraform provider under terraform, where it is on PATH: the life of each resource, and the functions. Both
# programs speak the same protocol, so only tofu runs the tests of mistakes in configurations.
step_terraform() {
	if terraform=$(command -v terraform); then
		tests='ClusterFile|ClusterData|SecretFile|LifecycleFile|ShardStatus|Group|Operator|Identity|Nonce|ServersReady|Userdata|AdminContext'
		tests="$tests|ConfigMerge|ConfigValidate|JSONCDecode|InstanceIDParse|GroupHash"
		tests="$tests|UnknownAtPlan|Misspelt|PlanOfManyGroups|OlderState|UpgradeFromVersion0|NothingSecretInFiles|ExampleLocal"
		acceptance "$terraform" registry.terraform.io "($tests)\$"
	else
		echo "-- terraform: NOT TESTED, because it is not on PATH"
	fi
}

# acceptance TERRAFORM REGISTRY [TESTS]
acceptance() {
	echo "-- $1"
	mkdir -p "$work/mirror"
	cat >"$work/terraform.rc" <<-RC
		disable_checkpoint = true
		provider_installation {
		  filesystem_mirror {
		    path = "$work/mirror"
		  }
		}
	RC
	TF_CLI_CONFIG_FILE="$work/terraform.rc" TF_ACC=1 TF_ACC_TERRAFORM_PATH=$1 TF_ACC_PROVIDER_HOST=$2 \
		go test ./terraform-provider-nstance/... -p 4 -run "^TestAcc${3:-}" -count=1 -timeout 20m
}

step_demo() {
	terraform=$(scripts/tool.sh tofu) scripts/nstance-dev.sh demo
}

# Building the tools of the rest is not part of the time of any other step.
step_alltools() {
	for name in terraform-provider-google terraform-provider-libvirt buf protoc-gen-go golangci-lint actionlint packer tflint tfplugindocs etcd fake-gcs-server kube-apiserver kubectl hpa capi-core kwok controller-gen helm kubeconform \
		clusterctl air overmind promtool hugo protoc-gen-doc crd-ref-docs misspell minisign; do
		scripts/tool.sh "$name"
	done
}

# `make generate` must not change any file. The comparison includes uncommitted files.
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

# The alert rules: their syntax, and which of them fire on sample metrics.
step_monitoring() {
	promtool=$(scripts/tool.sh promtool)
	"$promtool" check rules --lint=all --lint-fatal config/prometheus/nstance.rules.yaml
	(cd config/prometheus && "$promtool" test rules nstance.rules_test.yaml)
	# The chart fills in these names.
	sed -e 's/NAMESPACE/nstance-system/g' -e 's/JOB/nstance-operator-metrics/g' -e 's/CERTIFICATE_EXPIRY/432000/' services/operator/chart/files/rules.yaml \
		>"$work/operator.rules.yaml"
	"$promtool" check rules --lint=all --lint-fatal "$work/operator.rules.yaml"
}

step_lint() {
	scripts/lint.sh
}

# Deliberate bugs, which the simulator must find. Without MUTANTS=quick it runs all of them.
step_mutants() {
	MUTANTS=quick go test -tags mutation ./services/internal/proof/sim -run TestMutants -count=1 -timeout 10m
	go test -tags mutation ./services/internal/server/plan -run 'TestMutants$' -count=1 -timeout 10m
}

# The fake clouds and the documentation of the Terraform modules.
step_cloud() {
	go list ./tests/cloud/... ./tests/modules/... | grep -v '/tests/cloud/libvirtd$' | xargs go test -timeout 10m
}

# Further tests of AWS, which are part of unit: `make test-aws` runs them too.
step_aws() {
	go test ./services/internal/server/infra/aws/... ./services/store/secretstore/... ./services/store/keyring/... ./services/internal/agent/notice/... \
		-timeout 10m
}

# Tests of Google Cloud. All but the modules are part of unit and cloud: `make test-gcp` runs them too.
step_gcp() {
	go test ./services/internal/server/infra/gcp/... ./services/contract/cloud/gcp/... ./services/store/objstore/gcs/... \
		./services/store/secretstore/googlesecretmanager/... ./services/store/keyring/gcp/... ./tests/cloud/fakegcp/... ./tests/modules/... \
		-timeout 10m
	scripts/modules.sh gcp/account gcp/cluster gcp/federation gcp/network gcp/shard
}

# The Terraform modules, with mocked providers.
step_modules() {
	scripts/modules.sh
}

step_images() {
	scripts/images-check.sh
}

# The examples for AWS, applied to the fake cloud, used and destroyed.
step_stacks() {
	if terraform=$(command -v terraform); then
		echo "-- tofu and terraform: $terraform"
	else
		echo "-- tofu only: terraform is NOT TESTED, because it is not on PATH"
	fi
	# The stacks mostly wait, so four tests run at the same time.
	go test ./tests/stacks -count=1 -timeout 50m -parallel 4 -terraform="$terraform"
}

# The examples for Google Cloud and for two clouds, applied to the fake clouds and destroyed. One of them has a Kubernetes.
step_gcpstack() {
	for name in etcd kube-apiserver kube-controller-manager capi-core kubectl helm; do
		scripts/tool.sh "$name" >/dev/null
	done
	go test ./tests/stacks/gcp -count=1 -timeout 30m -parallel 4 -terraform="$(command -v terraform)"
}

# VMs of a real libvirtd, in namespaces: the provider alone, and a shard; and a shard of VMs on a fake cluster of Proxmox
# VE. It needs root.
step_libvirt() {
	go test ./services/internal/server/infra/libvirt/... ./tests/cloud/libvirtd -count=1 -timeout 10m
	scripts/libvirt.sh
	scripts/onprem.sh
}

# What installs the operator, and what its tests stand on.
step_install() {
	PATH=$(dirname -- "$(scripts/tool.sh kubectl)"):$PATH
	export PATH
	scripts/k8s-check.sh
	go test ./services/internal/dev/k8s/... -run '^TestKubectl$' -timeout 10m
	go test ./tests/kube ./tests/delivery -count=1 -p 1 -timeout 30m
}

# The operator with a real Kubernetes, Cluster API and two shards in each lab. Each lab needs about a third of a core and 1 GB.
step_labs() {
	PATH=$(dirname -- "$(scripts/tool.sh kubectl)"):$PATH
	export PATH
	go test ./tests/operator/... -count=1 -parallel 2 -timeout 60m
}

# Further tests of the operator, which are part of unit: `make test-k8s` runs them too.
step_operator() {
	go test ./services/internal/operator/... ./services/internal/dev/k8s/... ./services/api/... ./services/cmd/dev-k8s ./services/cmd/nstance-operator \
		-skip '^TestKubectl$' -timeout 10m
}

# The developers' workflow: make dev-tmux, make dev-tmux-k8s, make clean-dev.
step_dev() {
	timeout -k 60 900 scripts/dev-check.sh
}

# The page of nstance-admin serve in Chromium. It writes the screenshots of the documentation if $screenshots names their directory, and those of
# all views, sizes and themes if $views names theirs.
step_web() {
	chromium=$(command -v chromium) || {
		echo "chromium is needed: Debian: apt-get install chromium" >&2
		return 1
	}
	make -s build GO_BUILD="go build -tags grpcnotrace"
	go test ./services/internal/admin/serve/web/browsertest -count=1 -timeout 5m -v -args -bin="$PWD/bin" -chromium="$chromium" \
		-axe="$(scripts/tool.sh axe-core)" -screenshots="${screenshots:-}" -views="${views:-}"
}

# The documentation as a static site in temp/site, with checked links.
step_site() {
	site=${site:-$PWD/temp/site}
	mkdir -p "$site"
	"$(scripts/tool.sh hugo)" --source docs/site --destination "$site" --cleanDestinationDir --noBuildLock --panicOnWarning --quiet
	cp "$(scripts/tool.sh minisearch)" "$site/minisearch.js"
	go test ./tests/site -count=1 -args -site="$site" -chromium="$(command -v chromium || true)"
	echo "The site is in $site: open $site/index.html, or serve it with: python3 -m http.server -d $site 8000"
}

# The site, and the commands of pages that can run here.
step_docs() {
	site=$work/site
	step_site
	scripts/pages-check.sh
}

# A release of this platform: built two times and compared, then installed as a stranger would, with nothing but the
# release: signatures, packages, provider and modules from a registry, the chart. It needs root, for the machine that the
# packages are installed on.
step_release() {
	go -C scripts/release test ./...
	go test ./tests/release -count=1 -timeout 20m -v -args -run-release -terraform="$(command -v terraform)"
}

# system TEST FLAG... builds Nstance and runs a system test, also with the flags from the command line.
system() (
	# shellcheck source=scripts/system.sh
	. scripts/system.sh
	test=$1
	shift
	# shellcheck disable=SC2086 # a list
	run_system "^$test\$" "$@" $flags
)

# A cluster of an earlier version, upgraded part by part under load, and back where that is permitted.
step_upgrade() {
	old=$(scripts/old.sh)
	system TestUpgrade -old="$old/bin" -old-root="$old/src" -terraform="$(scripts/tool.sh tofu)"
}

# Random processes of a shard killed (kill -9) under load: scripts/test.sh kill9 [-rounds=10] [-seed=N] [-keep]
step_kill9() {
	system TestKill9
}

# How long a shard has no leader after kill -9, SIGSTOP and SIGTERM of the leader:
#   scripts/test.sh failover [-rounds=30] [-how=kill,pause,stop] [-most=1.5s] [-idle=10m] [-slow=2s -logs=DIR] [-keep]
#   scripts/test.sh failover -promise=0             without an heir
#   scripts/test.sh failover -records=5000 [-terminated] [-attach=3s] with instances of a fake EC2; -terminated ends the leader's machine too
# Without flags, the limit of 5 s leaves room for busy machines.
step_failover() {
	if [ -n "$flags" ]; then
		system TestFailover
	else
		system TestFailover -rounds=3 -most=5s
		system TestFailover -rounds=1 -most=5s -how=kill -records=100
	fi
}

# The leader of a cluster as `make up` starts it, paused (SIGSTOP): the standby must take over.
step_paused() {
	system TestPausedLeader -terraform="$(scripts/tool.sh tofu)"
}

# A server with a copy of the bucket: it must not lead before cluster restore. Servers that reach the cluster's bucket with a key file.
step_copied() {
	system TestCopiedBucket
	system TestKeyFiles
}

# A shard configured in ways that its servers cannot run: it must keep working.
step_refused() {
	system TestRefusedConfiguration -terraform="$(scripts/tool.sh tofu)"
}

# Every command of docs/how-to/debug.md against real servers and agents, and those of other pages in docs/how-to.
step_debug() {
	system TestDebugStory -terraform="$(scripts/tool.sh tofu)" -promtool="$(scripts/tool.sh promtool)"
	step_howto
}
step_howto() {
	system TestHowTo -promtool="$(scripts/tool.sh promtool)"
}

# The encryption key of a cluster rotated: each change of the configuration may change the leader once.
step_rotatekey() {
	system TestRotateKey
}

# Groups that scale by the length of a queue: by its URL, and by a query to a real Prometheus.
step_scaling() {
	system TestScaling -prometheus="$(scripts/tool.sh prometheus)"
}

# The CA of a cluster rotated while a client calls it, agents run, and the rotation is interrupted: about 20 minutes.
step_rotateca() {
	system TestRotateCA -test.timeout=50m
}

step_chaos() {
	scripts/chaos.sh
}

step_bench() {
	scripts/bench.sh short
}

# What `make test` runs, in two lists at the same time.
step_basic() {
	side_by_side 'unit sim' 'race acceptance demo'
}

# Most of the rest, in three lists at the same time. The lists in the background mostly wait for Kubernetes, for machines and for faults. The
# first one computes.
step_parallel() {
	side_by_side 'monitoring long terraform mutants cloud modules images dev docs libvirt release bench' \
		'labs refused copied rotatekey scaling upgrade debug chaos' 'stacks gcpstack install'
}

# Steps with limits for the time that a shard needs. They mostly wait, so they run at the same time, but after those that compute.
step_quiet() {
	(
		# shellcheck source=scripts/system.sh
		. scripts/system.sh
		build_system
	)
	side_by_side 'failover paused' kill9
}

# side_by_side LIST... runs lists of steps at the same time. It prints the output of the first list immediately, and that of the others at the
# end.
side_by_side() {
	first=$1
	shift
	pids=
	echo "-- in the background, with the output at the end: $*"
	for list; do
		# shellcheck disable=SC2086 # lists of steps
		scripts/test.sh $list >"$work/${list%% *}.list" 2>&1 &
		pids="$pids $!"
	done
	# shellcheck disable=SC2064,SC2086
	trap "kill $pids 2>/dev/null || true" EXIT
	status=0
	# shellcheck disable=SC2086
	scripts/test.sh $first || status=$?
	for pid in $pids; do
		wait "$pid" || status=$?
	done
	for list; do
		cat "$work/${list%% *}.list"
	done
	return "$status"
}

# run runs one step. The subshell keeps set -e in force: under `if` or `||` a shell ignores it.
run() {
	printf '\n==> %s (step %d of %d)\n' "$1" "$number" "$total"
	start=$(date +%s)
	status=0
	set +e
	(
		set -e
		"step_$1"
		times >"$work/times"
	)
	status=$?
	set -e
	took=$(($(date +%s) - start))
	if [ "$status" -ne 0 ]; then
		printf '==> %s FAILED after %d s. Run it again with: scripts/test.sh %s\n' "$1" "$took" "$1" >&2
		exit 1
	fi
	cpu=$(awk -F '[ms ]+' 'NR == 2 { print int($1 * 60 + $2 + $3 * 60 + $4) }' "$work/times")
	printf '==> %s ok, %d s, with %d s of CPU\n' "$1" "$took" "$cpu"
	summary="$summary$(printf '  %-12s %4d s %5d s of CPU' "$1" "$took" "$cpu")
"
}

basic='tools basic'
rest='alltools generated lint parallel quiet web'
case ${1:-} in
'') eval "set -- $basic" ;;
rest) eval "set -- $rest" ;;
all)
	eval "set -- $basic $rest"
	# The step lint vets all packages.
	export long_follows=yes GOFLAGS="$GOFLAGS -vet=off"
	;;
esac
steps=
flags=
for word; do
	case $word in
	-*) flags="$flags $word" ;;
	*) steps="$steps $word" ;;
	esac
done
eval "set -- $steps"
summary=
number=0
total=$#
began=$(date +%s)
for step; do
	number=$((number + 1))
	run "$step"
done
printf '\nall %d steps passed in %d s\n%s' "$total" "$(($(date +%s) - began))" "$summary"
