# DSec. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup image-check build aether run tour test chaos lint bench clean golangci

# A build says nothing about the folder and the checkout it was made in.
export GOFLAGS := -buildvcs=false
GOARCH ?= $(shell go env GOARCH)
GOBUILD := CGO_ENABLED=0 go build -trimpath -ldflags "-s -w"
AETHER := internal/aetherbin/bin/dsec-aether-$(GOARCH)
LINTER := $(shell go env GOPATH)/bin/golangci-lint

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install packages and modules, build the machine's images (needs root)
	@hack/setup

build: aether ## build bin/dsec, with dsec-aether inside it
	@GOOS=linux $(GOBUILD) -o bin/dsec ./cmd/dsec

# Not embedded when there is none: a clean clone must build with plain `go build` too. go build leaves it alone, and so
# everything that embeds it, when nothing in it has changed.
aether:
	@GOOS=linux GOARCH=$(GOARCH) $(GOBUILD) -o $(AETHER) ./cmd/dsec-aether

image-check: setup ## build image debian once more, and see whether the same packages give the same bytes
	@hack/image-debian --check

run: setup build ## the main job: a node of its own, 32 agents that repair a bug at once, some that cheat, and nothing left
	@hack/mainjob

tour: setup build ## the two-minute tour of the README, on a node of its own
	@hack/tour

test: setup build ## the whole suite, as root; says what was skipped and what was left behind
	@go run ./hack/suite -allowed-skips .ci/allowed-skips -summary bin/test-summary $(PKGS)

chaos: build ## ten minutes of kills, full disks and failing steps under load (as root), then every sandbox accounted for
	@DSEC_CHAOS=$${DSEC_CHAOS:-10m} DSEC_CHAOS_CYCLES=$${DSEC_CHAOS_CYCLES:-5000} nice go test -count=1 -timeout 60m -v -run 'TestChaos$$' ./test/chaos

lint: golangci ## formatting, linters, modernizers, modules, generated code, cross builds
	@LINTER=$(LINTER) hack/lint

golangci:
	@hack/golangci $(LINTER)

bench: setup build ## all benchmarks, quickly, those that compare against crun; hack/bench takes its time
	@hack/bench --quick

clean: ## remove what was built here; the machine's images stay
	@rm -rf bin internal/aetherbin/bin/dsec-aether-*
