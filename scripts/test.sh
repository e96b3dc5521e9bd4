#!/usr/bin/env bash
# Every check and test, in the order in which they fail fastest. `make test` calls it after the set-up.
set -euo pipefail
cd "$(dirname "$0")/.."

step() {
    printf '\n== %s\n' "$*"
    "$@"
}

step cargo xtask tidy
step cargo fmt --all --check
step cargo clippy --workspace --all-targets --locked -- -D warnings
# The fuzzers are no members of the workspace: they are to build at least.
if command -v c++ >/dev/null; then
    step cargo check --manifest-path fuzz/Cargo.toml --locked --target-dir target
else
    printf '\n== SKIPPED the fuzzers: their library needs a C++ compiler (apt-get install g++)\n'
fi
if cargo deny --version >/dev/null 2>&1; then
    step cargo deny --all-features check
else
    printf '\n== SKIPPED cargo deny check: cargo-deny is not installed (cargo install cargo-deny)\n'
fi
if command -v shellcheck >/dev/null; then
    step shellcheck --external-sources .ci/run scripts/*.sh scripts/demo/*.sh tests/guest/*.sh tests/guest/init
else
    printf '\n== SKIPPED shellcheck: it is not installed (apt-get install shellcheck)\n'
fi
step cargo test --workspace --locked
step cargo xtask interop --quick
if command -v valgrind >/dev/null; then
    step cargo xtask bench engine
else
    printf '\n== SKIPPED cargo xtask bench engine: valgrind is not installed (apt-get install valgrind)\n'
fi

printf '\n%ss: every check and test passed\n' "$SECONDS"
