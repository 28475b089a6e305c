# Everything here is one line that a person could also type; what is longer
# lives in scripts/. `make help` lists the targets.

GO      ?= go
BIN     := bin/platter
DISK    ?= ./platter-demo.img
PREFIX  ?= /usr/local
FUZZTIME ?= 30s
SOAK    ?= 10m
BENCH   ?=

.PHONY: help build run test lint fuzz soak screenshots bench bench-vhostuser bench-directwrite deps install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the static binary, in bin/
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=auto -o $(BIN) ./cmd/platter

run: build ## serve a 1 GiB disk (DISK=path; made if absent) and print its URI
	$(BIN) serve --create 1G $(DISK)

deps: ## install what the tests need (Debian)
	sh scripts/deps.sh

test: deps ## all that decides whether a change may land
	$(GO) run ./scripts/testrun

lint: ## the repository's rules, and the other systems' builds
	$(GO) test -count=1 -tags cross -timeout 20m ./internal/lint

fuzz: ## each fuzz target for FUZZTIME (30s)
	sh scripts/fuzz.sh $(FUZZTIME)

soak: deps ## model and stress tests for longer, under the race detector (SOAK=10m)
	$(GO) run ./scripts/testrun -soak $(SOAK)

screenshots: deps ## the daemon's page under load, into docs/images
	PLATTER_SCREENSHOTS=$(CURDIR)/docs/images $(GO) test ./test/web -count=1 -run Screenshots

bench: deps ## against the NBD peers (BENCH='-rows … -peers …'; see bench/nbd -help)
	$(GO) run ./bench/nbd $(BENCH)

bench-vhostuser: deps ## against qemu-storage-daemon (BENCH='-rows … -disks …'; see bench/vhostuser -help)
	$(GO) run ./bench/vhostuser $(BENCH)

bench-directwrite: ## direct writes by buffer address (BENCH='-dir … -rounds …')
	$(GO) run ./bench/directwrite $(BENCH)

install: build ## binary and manual pages, below PREFIX (/usr/local)
	install -D -m 0755 $(BIN) $(DESTDIR)$(PREFIX)/bin/platter
	$(BIN) man $(DESTDIR)$(PREFIX)/share/man/man1

clean: ## remove what build makes
	rm -rf bin dist
