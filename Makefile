# Root on Debian or Ubuntu. `make demo` shows the product, `make test` runs every
# test; both install what they need.
SHELL := /bin/bash
export CGO_ENABLED = 0

BIN   := bin/tombolo
DATA  := $(CURDIR)/.tombolo/data
AGENT := internal/agent/embedded/bin/agent
LDFLAGS := -s -w

GO_FILES := $(shell find cmd internal templates -type f -not -path '*/embedded/bin/*' 2>/dev/null)

.PHONY: setup build templates demo test bench lint clean

setup: packages build templates ## system packages, the binary, the default templates

packages: .tombolo/packages

.tombolo/packages: scripts/packages.sh
	mkdir -p .tombolo
	scripts/packages.sh
	touch $@

build: $(BIN)

$(AGENT): $(GO_FILES) go.mod go.sum
	go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o $@ ./cmd/tombolo-agent

$(BIN): $(AGENT) $(GO_FILES) go.mod go.sum
	go build -trimpath -ldflags '$(LDFLAGS)' -o $@ ./cmd/tombolo
