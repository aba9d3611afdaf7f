# What a developer does here, and what a release is made by. `make` alone lists it.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory
.DEFAULT_GOAL := help

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -X main.version=$(VERSION)

# Packages tested at once. Two fit two cores and keep at most two PostgreSQL servers running.
P ?= 2
# Added to every `go test`, for example TESTFLAGS='-run TestSplit -v'.
TESTFLAGS ?=
# How long `make fuzz` gives each target.
FUZZTIME ?= 10m
# Flags of `make demo`, for example DEMOFLAGS='--for 2m'.
DEMOFLAGS ?=
# `make integration`: LEDGER=host:port, and as needed TOKEN_FILE, TLS_CA, TLS_CERT, TLS_KEY (files), RESTART_COMMAND, PRUNE=yes,
# LF=2.3|2.2, REPORT=directory. See docs/integration.md.
REPORT ?= bin/integration

# The commit that the proto must stay compatible with: the newest main that has one.
AGAINST ?= $(shell for r in origin/main main HEAD; do git cat-file -e $$r:buf.yaml 2>/dev/null && echo $$r && break; done)

TOOLS := bin/tools

##@ Use

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z][a-z-]*:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/disclosured
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/disclosured ./cmd/disclosured

.PHONY: demo
demo: build ## a simulated ledger, the daemon and redeemers, for 20s (DEMOFLAGS='--for 2m')
	bin/disclosured demo $(DEMOFLAGS)

##@ Prove

.PHONY: test
test: postgres ## all tests with reduced counts, against a real PostgreSQL (15m on two cores)
	$(GO) test -p $(P) -count=1 -timeout 14m $(TESTFLAGS) ./...

.PHONY: check
check: format tidy vet staticcheck lint generated imports dar deployment race ## all that must be green before a commit lands: the parts below

.PHONY: soak
soak: postgres ## all tests with the full counts (hours; at most 12h a package)
	DISCLOSURED_SOAK=1 $(GO) test -p 1 -count=1 -timeout 12h $(TESTFLAGS) ./...

.PHONY: bench
bench: postgres ## all benchmarks, one package after the other (at most 2h each)
	$(GO) test -p 1 -run '^$$' -bench . -benchmem -timeout 2h $(TESTFLAGS) ./...

# Left to itself the fuzzer spends up to a minute on making each input smaller that has reached new code, most of the ten in all.
.PHONY: fuzz
fuzz: ## every fuzz target, for 10m each (FUZZTIME=1m)
	@grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed -E 's|/[^/]*:[0-9]+:func | |' | sort | while read -r dir name; do \
		echo "fuzz $$dir $$name"; \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x $(TESTFLAGS) $$dir < /dev/null || exit 1; \
	done

.PHONY: difftest
difftest: ## the replay guard against the real submission server that it takes its contract from (a module of its own)
	cd replayguard/difftest && $(GO) test -count=1 ./...

.PHONY: mutants
mutants: postgres ## faults put into the replay guard, in memory and in PostgreSQL, one by one: the tests must notice each (10m)
	$(GO) run ./replayguard/testdata/mutants -postgres

.PHONY: vulncheck
vulncheck: tools ## known vulnerabilities in what we call (asks the Go vulnerability database)
	$(TOOLS)/govulncheck ./...

# A path from the root of the file system. Unlike abspath, it takes one with blanks for one.
whole = $(if $(1),$(if $(filter /%,$(firstword $(1))),,$(CURDIR)/)$(1))

.PHONY: integration integration-settings
integration: export DISCLOSURED_LEDGER          = $(LEDGER)
integration: export DISCLOSURED_TOKEN_FILE      = $(call whole,$(TOKEN_FILE))
integration: export DISCLOSURED_TLS_CA          = $(call whole,$(TLS_CA))
integration: export DISCLOSURED_TLS_CERT        = $(call whole,$(TLS_CERT))
integration: export DISCLOSURED_TLS_KEY         = $(call whole,$(TLS_KEY))
integration: export DISCLOSURED_RESTART_COMMAND = $(RESTART_COMMAND)
integration: export DISCLOSURED_PRUNE           = $(PRUNE)
integration: export DISCLOSURED_LF              = $(LF)
integration: export DISCLOSURED_REPORT          = $(call whole,$(REPORT))
integration: integration-settings postgres ## the whole story against a participant of yours: LEDGER=host:port (docs/integration.md)
	$(GO) test -count=1 -timeout 40m -v -run '^TestStory$$' $(TESTFLAGS) ./internal/integration

integration-settings:
	@tools/check-integration

##@ Parts of check

.PHONY: format
format: ## every Go file is as gofmt writes it
	@files=$$(gofmt -l cmd internal proto migrations client replayguard daml deploy tools 2>/dev/null || true); \
	if [ -n "$$files" ]; then echo "not formatted, run gofmt -w on:"; echo "$$files"; exit 1; fi

.PHONY: tidy
tidy: ## go.mod and go.sum say what the code imports
	$(GO) mod tidy -diff

.PHONY: vet
vet: ## go vet
	$(GO) vet ./...

.PHONY: staticcheck
staticcheck: tools ## staticcheck
	$(TOOLS)/staticcheck ./...

.PHONY: lint
lint: tools ## the proto's style, and its compatibility with AGAINST (the newest main)
	$(TOOLS)/buf lint
	@if [ -z "$(AGAINST)" ]; then echo "buf breaking: no earlier proto to hold this one against"; else \
		old=$$(mktemp -d); trap 'rm -rf "$$old"' EXIT; \
		git archive $(AGAINST) buf.yaml proto | tar -x -C "$$old"; \
		echo "$(TOOLS)/buf breaking --against $(AGAINST)"; $(TOOLS)/buf breaking --against "$$old"; fi

.PHONY: generated
generated: tools ## the generated code in the tree is what the proto gives
	@new=$$(mktemp -d); trap 'rm -rf "$$new"' EXIT; \
	$(TOOLS)/buf generate -o "$$new"; \
	diff -r <(cd "$$new" && find proto -name '*.pb.go' | sort | xargs sha256sum) \
		<(find proto -name '*.pb.go' | sort | xargs sha256sum) \
		|| { echo "generated code differs from the proto: run make generate"; exit 1; }

.PHONY: imports
imports: ## the import rules and the other rules of this repository
	$(GO) test -count=1 ./internal/repotest

.PHONY: dar
dar: ## the DARs in daml/lf are what their text gives, byte for byte
	@tools/check-dars

.PHONY: deployment
deployment: ## Dockerfile, compose file, alerts, dashboard and every shell script, as far as no Docker engine is needed
	@tools/check-deploy
	cd tools && $(GO) test ./composecheck

.PHONY: race
race: postgres ## all tests under the race detector (15m on two cores)
	$(GO) test -race -p $(P) -count=1 -timeout 30m $(TESTFLAGS) ./...

##@ Make

.PHONY: daml
daml: ## the Daml sources' own DARs, and their tests, where the Daml SDK (dpm) is installed
	@tools/build-daml

.PHONY: generate
generate: tools ## Go from the proto
	$(TOOLS)/buf generate

# The tools have a module of their own. protoc-gen-go alone comes from the product's, so that the code that it writes
# and the runtime that the code is compiled with are of one version.
.PHONY: tools
tools: $(TOOLS)/.built ## the developer tools, into bin/tools (minutes, the first time)

$(TOOLS)/.built: tools/go.mod tools/go.sum go.mod
	@mkdir -p $(TOOLS)
	$(GO) build -C tools -o ../$(TOOLS)/ tool
	$(GO) build -o $(TOOLS)/ google.golang.org/protobuf/cmd/protoc-gen-go
	@touch $@

.PHONY: postgres
postgres: ## PostgreSQL server binaries for the tests, installed where they are missing and we may
	@tools/ensure-postgres

.PHONY: clean
clean: ## remove bin
	rm -rf bin
