# What a person does with this repository. Each target delegates to a script or to go; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help up down demo check dev-tmux dev-tmux-k8s dev-operator kind clean-kind clean-dev build nstance-admin image image-operator sim sim-swarm bench fuzz chaos generate lint test test-aws test-k8s test-short

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GO_BUILD = CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags '-s -w -X main.version=$(VERSION)'

# make sim SEED=42 repeats one world; DURATION is wall time.
SEED ?=
DURATION ?= 60s

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: ## Start a cluster on this machine: object store, tofu apply, servers, agents
	@scripts/nstance-dev.sh up

down: ## End what `make up` started and clean it away
	@scripts/nstance-dev.sh down

demo: ## Run the whole story by itself and print a timeline with measured times
	@scripts/nstance-dev.sh demo

check: ## Verify what development needs: go, tmux, kubectl, air, overmind
	@scripts/check.sh

dev-tmux: ## Run object store and two servers under Overmind, reloading on change
	@scripts/dev-tmux.sh

dev-tmux-k8s: ## The same, and dev-k8s (a Kubernetes API) and nstance-operator
	@scripts/dev-tmux-k8s.sh

dev-operator: ## Run nstance-operator, reloading on change, against temp/operator/kubeconfig
	@scripts/dev-operator.sh

kind: ## Make a kind cluster with Cluster API for `make dev-operator` (needs Docker; `make dev-tmux` runs)
	@scripts/kind.sh up

clean-kind: ## Remove what `make kind` made
	@scripts/kind.sh down

clean-dev: ## Remove the development environment: its processes, agents and temp/
	@scripts/clean-dev.sh

build: ## Build every binary into ./bin
	@mkdir -p bin
	$(GO_BUILD) -o bin/ ./services/cmd/... ./terraform-provider-nstance

nstance-admin: ## Build ./bin/nstance-admin
	@mkdir -p bin
	$(GO_BUILD) -o bin/ ./services/cmd/nstance-admin

image: ## Make a machine image with Packer (ROLE=server|agent ARCH=arm64|amd64 ON=aws|qemu)
	@scripts/image.sh

image-operator: ## Make the operator's container image (PUSH=registry.example.com/name:tag to push it)
	@VERSION='$(VERSION)' PUSH='$(PUSH)' scripts/image-operator.sh

sim: ## Simulate faults (SEED=n repeats one world, DURATION=60s)
	SIM_SEED='$(SEED)' SIM_DURATION='$(DURATION)' go test ./services/internal/sim -run TestWorld -count=1 -timeout=0 -v

sim-swarm: ## Simulate N=2000 worlds on all cores, shrink what fails, write temp/sim-coverage.md
	@mkdir -p temp
	SIM_SWARM='$(or $(N),2000)' SIM_COVERAGE='$(CURDIR)/temp/sim-coverage.md' go test ./services/internal/sim -run TestSwarm -count=1 -timeout=0 -v

chaos: ## Break shards of real processes in every way, for three quarters of an hour
	@scripts/chaos.sh long

fuzz: ## Fuzz every parser of outside bytes (FUZZ=3m each, PATTERN=expression)
	@scripts/fuzz.sh '$(or $(FUZZ),3m)' '$(or $(PATTERN),.)'

bench: ## Measure what docs/evidence/performance.md reports
	@scripts/bench.sh

generate: ## Regenerate everything that is generated
	@scripts/generate.sh

lint: ## gofmt, vet, golangci-lint, buf, shellcheck
	@scripts/lint.sh

test: ## Every test, building what it needs: what CI runs
	@scripts/test.sh

test-aws: ## Everything about AWS: fake cloud, provider, modules, images, whole stacks
	@scripts/test.sh tools cloud modules images stacks

test-k8s: ## Everything about Kubernetes: operator, dev-k8s, what installs it, whole clusters
	@scripts/test.sh tools operator kube

test-short: ## Unit tests only, no external tools, under two minutes
	go test -short ./...
