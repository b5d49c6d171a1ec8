# What a developer or a first user calls. Everything is built in the release profile and in one target directory, so that
# RocksDB and libp2p are built once; scripts/cargo sets the environment for all. Always the whole workspace is selected:
# `-p` of one crate would unify the features of fewer dependencies, and build libp2p a second time.

CARGO := scripts/cargo
BUILD := $(CARGO) build --release --workspace --locked
BIN = $(shell scripts/cargo target-dir)/release
# Rows of `make bench`, separated by commas; empty for all.
ROWS ?=

.PHONY: help setup demo demo-stop test sim check check-quick bench

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' Makefile

setup: ## install what the build needs besides Rust (Debian, Ubuntu); does nothing when all is there
	@scripts/setup.sh

demo: setup ## build, run three nodes on this machine, fill them with data, kill one, show that they are equal
	@scripts/demo.sh start

demo-stop: ## stop the three nodes of the demonstration
	@scripts/demo.sh stop

test: setup ## run all tests
	$(CARGO) test --release --workspace --locked

sim: setup ## simulate clusters under faults: 200 fixed seeds and 50 fresh ones, which are printed
	$(BUILD) --bin simulations
	$(BIN)/simulations run --scenario chaos --seeds 0..120
	$(BIN)/simulations run --scenario swarm --seeds 0..80
	$(BIN)/simulations run --scenario chaos-fleet --seeds 0..10
	$(BIN)/simulations run --scenario chaos --fresh 30
	$(BIN)/simulations run --scenario swarm --fresh 20

check: check-quick test sim ## everything that must hold before a commit
	$(BUILD) --bin bench
	$(BIN)/bench --quick --out /dev/null

check-quick: setup ## the gates that run no test: format, lints, documentation, crdt without an operating system
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --release --workspace --no-deps --locked
	@if rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown; then \
	  echo '$(CARGO) build -p crdt --target wasm32-unknown-unknown'; \
	  $(CARGO) build --release -p crdt --locked --target wasm32-unknown-unknown; \
	else echo 'skipped: crdt for wasm32-unknown-unknown (rustup target add wasm32-unknown-unknown)'; fi
	@if command -v shellcheck >/dev/null; then shellcheck scripts/* .ci/run; \
	else echo 'skipped: shellcheck is not installed'; fi

bench: setup ## measure against bare RocksDB (make bench ROWS=get,list for some); writes bench-report.json
	$(BUILD) --bin bench
	$(BIN)/bench $(if $(ROWS),--rows $(ROWS)) --out bench-report.json
