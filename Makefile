# Root on Debian or Ubuntu. `make demo` shows the product, `make test` runs every
# test; both install what they need and are fast the second time.
SHELL := /bin/bash
.DELETE_ON_ERROR:

# What the targets make stays in the checkout, below .tombolo: data is the data
# folder of demo, test and bench, bin the tools, clients the official packages.
STATE := $(CURDIR)/.tombolo
DATA  := $(STATE)/data
BIN   := bin/tombolo
# What runs inside sandboxes; the binary carries it.
INSIDE := internal/agent/embedded/bin
AGENT  := $(INSIDE)/agent $(INSIDE)/mcp-gateway

# gVisor re-executes itself in an empty root, so nothing may be linked at run time.
# One set of flags for all of build, vet and test: gVisor is compiled once.
export CGO_ENABLED = 0
export GOFLAGS = -trimpath
GO_FILES := $(shell find cmd internal templates -type f -not -path '*/embedded/bin/*' -not -name '*_test.go')

.PHONY: help setup packages build templates clients demo test lint unit e2e soak test-cgroup2 bench clean

help: ## say what there is to make
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 21

setup: build templates clients ## system packages, the binary, the default templates, the official clients

packages: $(STATE)/packages

$(STATE)/packages: scripts/packages.sh
	scripts/packages.sh
	@mkdir -p $(@D) && touch $@

build: packages $(BIN) ## the binary, bin/tombolo

# They are part of every snapshot's name: the same source gives the same bytes.
$(INSIDE)/agent: $(GO_FILES) go.mod go.sum
	go build -buildvcs=false -ldflags '-s -w -buildid=' -o $@ ./cmd/tombolo-agent

$(INSIDE)/mcp-gateway: $(GO_FILES) go.mod go.sum
	go build -buildvcs=false -ldflags '-s -w -buildid=' -o $@ ./cmd/mcp-gateway

$(BIN): $(AGENT) $(GO_FILES) go.mod go.sum
	go build -ldflags '-s -w' -o $@ ./cmd/tombolo

templates: build ## the default templates, in .tombolo/data
	$(BIN) template build --data $(DATA)

clients: packages ## the official E2B packages for Python and JavaScript
	test/e2e/setup.sh

demo: templates clients ## start a server, run the quickstart in Python and JavaScript, stop
	scripts/demo.sh $(BIN) $(DATA)

# The templates are built beside the Go tests: both wait as much as they compute.
test: lint ## everything: lint, Go tests, end-to-end tests with the official clients
	$(MAKE) --jobs=2 unit templates
	$(MAKE) e2e

lint: packages $(AGENT)
	@test -z "$$(gofmt -l cmd internal templates)" || { echo "gofmt would change:"; gofmt -l cmd internal templates; exit 1; }
	go vet ./...
	GOBIN=$(STATE)/bin go install honnef.co/go/tools/cmd/staticcheck@v0.7.0
	$(STATE)/bin/staticcheck ./...

# A test of the gateway starts gVisor itself, by the name under which the binary is it.
unit: packages $(BIN)
	@mkdir -p $(STATE) && ln -sfn $(CURDIR)/$(BIN) $(STATE)/runsc
	TOMBOLO_TEST_RUNSC=$(STATE)/runsc go test ./...

e2e: templates clients
	TOMBOLO_TEST_DATA=$(DATA) test/e2e/run.sh

SOAK_MINUTES ?= 10

soak: templates clients ## sandboxes used at random and servers killed, for SOAK_MINUTES (10)
	$(STATE)/clients/python/bin/python test/e2e/soak/soak.py --data $(DATA) --minutes $(SOAK_MINUTES)

test-cgroup2: build ## the engine's tests on control groups v2, in an emulated machine (amd64)
	scripts/cgroup2.sh $(STATE)/cgroup2 $(BIN)

bench: templates clients ## the figures of docs/performance.md, each beside its baseline
	$(STATE)/clients/python/bin/python bench/run.py --data $(DATA)

clean: ## remove what make made
	rm -rf bin $(STATE) $(AGENT) test/e2e/js/node_modules test/e2e/js-old/node_modules
