# Two commands for a fresh machine: `make demo` shows the product, `make test` is the gate for
# changes. Each installs the missing packages that scripts/setup.sh lists.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PATH := $(PATH):/usr/sbin:/sbin

.PHONY: help
help: ## Lists the commands
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: setup
setup: ## Installs the packages for the demo and the tests
	@scripts/setup.sh

.PHONY: demo
demo: setup ## Runs the main job on an embedded default: under three minutes after the build
	@scripts/demo.sh

.PHONY: test
test: setup ## Runs the gate: every check that a change has to pass
	@cargo xtask gate

.PHONY: nightly
nightly: setup ## Runs the checks that are too long for the gate, for hours
	@cargo xtask nightly

.PHONY: build
build: ## Builds the release binary, target/release/forebay
	cargo build --release --locked --package forebay

.PHONY: clean
clean: ## Removes the build results
	cargo clean
