# Two commands for a fresh machine: `make demo` shows the product, `make test` proves it.
# Each installs the packages that it lacks (scripts/setup.sh says which) and may be run again.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PATH := $(PATH):/usr/sbin:/sbin

.PHONY: help
help: ## Lists the commands
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: setup
setup: ## Installs what the demo and the tests need
	@scripts/setup.sh

.PHONY: demo
demo: setup ## Runs the main job on an embedded default: under three minutes after the build
	@scripts/demo.sh

.PHONY: test
test: setup ## Passes every check and test
	@scripts/test.sh

.PHONY: build
build: ## Builds the release binary, target/release/forebay
	cargo build --release --locked --package forebay

.PHONY: clean
clean: ## Removes what was built
	cargo clean
