# The commands for users and developers of this repository. Each target runs a script or go. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help up down demo check dev-tmux dev-tmux-k8s dev-operator kind clean-kind clean-dev build nstance-admin image image-operator release publish sim sim-swarm mutants bench fuzz chaos generate pictures docs lint test test-all test-aws test-gcp test-k8s test-short cloud-test vulnerabilities

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GO_BUILD = CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags '-s -w -X main.version=$(VERSION)'

# make sim SEED=42 repeats one simulated world. DURATION is wall time.
SEED ?=
DURATION ?= 60s

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: ## Start a cluster on this machine: object store, tofu apply, servers, agents (PROVIDER=libvirt: real VMs)
	@scripts/nstance-dev.sh up --provider=$(or $(PROVIDER),tmux)

down: ## Destroy the cluster of `make up` and remove its files
	@scripts/nstance-dev.sh down

demo: ## Play the life of a shard by itself and print measured times
	@scripts/nstance-dev.sh demo

check: ## Check for the programs that development needs
	@scripts/check.sh

dev-tmux: ## Run an object store and two servers under Overmind, with reload on change
	@scripts/dev-tmux.sh

dev-tmux-k8s: ## The same with dev-k8s (a Kubernetes API) and nstance-operator
	@scripts/dev-tmux.sh Procfile.dev-k8s

dev-operator: ## Run nstance-operator against temp/operator/kubeconfig, with reload on change
	@scripts/dev-operator.sh

kind: ## Create a kind cluster with Cluster API for `make dev-operator` (needs Docker and a running `make dev-tmux`)
	@scripts/kind.sh up

clean-kind: ## Delete the cluster of `make kind`
	@scripts/kind.sh down

clean-dev: ## Stop the development environment and remove its files in temp/
	@scripts/clean-dev.sh

build: ## Build every binary into ./bin
	@mkdir -p bin
	$(GO_BUILD) -o bin/ ./services/cmd/... ./terraform-provider-nstance

nstance-admin: ## Build ./bin/nstance-admin
	@mkdir -p bin
	$(GO_BUILD) -o bin/ ./services/cmd/nstance-admin

image: ## Build a machine image with Packer (ROLE=server|agent ARCH=arm64|amd64 ON=aws|gcp|qemu)
	@scripts/image.sh

image-operator: ## Build the container image of the operator (PUSH=registry.example.com/name:tag pushes it)
	@go -C images/container run . -program nstance-operator -out '$(CURDIR)/bin/nstance-operator-image' -version '$(VERSION)' $(if $(PUSH),-push '$(PUSH)')

release: ## Build everything that a release publishes into dist/ (VERSION=v0.2.0; STRICT=1 fails on warnings, PUSH=1 pushes images)
	@VERSION='$(VERSION)' STRICT='$(STRICT)' PUSH='$(PUSH)' PLATFORMS='$(PLATFORMS)' scripts/release.sh

publish: ## Publish dist/ as a release on GitHub (VERSION=v0.2.0; needs gh and its token)
	@VERSION='$(VERSION)' scripts/publish.sh

sim: ## Simulate shards with faults (SEED=n repeats one world, DURATION=60s)
	SIM_SEED='$(SEED)' SIM_DURATION='$(DURATION)' go test ./services/internal/proof/sim -run TestWorlds -count=1 -timeout=0 -v

sim-swarm: ## Simulate N=2000 worlds on all cores and shrink failures
	SIM_SWARM='$(or $(N),2000)' go test ./services/internal/proof/sim -run TestWorlds -count=1 -timeout=0 -v

mutants: ## List the deliberate bugs that a package's own tests do not notice (PKG=./services/internal/server/journal)
	go run ./services/internal/proof/mutate/mutants $(PKG)

chaos: ## Run every fault against shards of real processes (45 minutes)
	@scripts/chaos.sh long

fuzz: ## Fuzz every parser of untrusted input (FUZZ=3m each, PATTERN=expression)
	@scripts/fuzz.sh '$(or $(FUZZ),3m)' '$(or $(PATTERN),.)'

bench: ## Run the benchmarks of the documentation
	@scripts/bench.sh

generate: ## Regenerate all generated files
	@scripts/generate.sh

pictures: ## Renew the pictures of the documentation: the page's screenshots and the recording of `make demo` (needs Chromium)
	@scripts/pictures.sh

docs: ## Build the documentation as a static site with search into temp/site
	@scripts/test.sh site

lint: ## gofmt, golangci-lint with vet, buf, shellcheck, actionlint, spelling
	@scripts/lint.sh

vulnerabilities: ## Check whether the programs call vulnerable code of the Go vulnerability database (needs the network)
	@govulncheck=$$(scripts/tool.sh govulncheck) && $$govulncheck -tags grpcnotrace ./services/... ./terraform-provider-nstance/... && $$govulncheck -C images/container ./...

test: ## Run the tests that need only Go, make and tmux
	@scripts/test.sh

test-all: ## Run every test, as CI does
	@scripts/test.sh all

test-aws: ## Run the tests for AWS: fake cloud, provider, modules, images, whole stacks
	@scripts/test.sh tools alltools cloud aws modules images stacks

test-gcp: ## Run the tests for Google Cloud: fake cloud, provider, modules, stack
	@scripts/test.sh tools gcp gcpstack

test-k8s: ## Run the tests for Kubernetes: operator, dev-k8s, installation, whole clusters
	@scripts/test.sh tools alltools operator install labs

cloud-test: ## Prove Nstance in your own account, then delete everything: CLOUD=aws|gcp REGION=… (HELP=1 explains, CLEAN=1 cleans up)
	@scripts/cloud-test.sh $(if $(HELP),-help) $(if $(CLOUD),-cloud '$(CLOUD)') $(if $(REGION),-region '$(REGION)') \
		$(if $(ZONE),-zone '$(ZONE)') $(if $(ARCH),-arch '$(ARCH)') $(if $(ACCOUNT),-account '$(ACCOUNT)') \
		$(if $(NAME),-name '$(NAME)') $(if $(STEPS),-steps '$(STEPS)') $(if $(CLEAN),-clean) $(if $(YES),-yes) $(FLAGS)

test-short: ## Run the unit tests, without external tools (two minutes)
	go test -short ./...
