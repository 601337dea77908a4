# SPDX-License-Identifier: MIT OR Apache-2.0
# Verbs only; each does what it says from a bare machine on.
#   make demo    boot a machine, fill its memory, watch the pages go and come back
#   make test    everything that must hold, once (aims at 45 minutes on two slow cores)
#   make soak    what needs hours: long fuzzing, an hour of pressure, repeated kills
#   make bench   figures, each beside its peer
.DEFAULT_GOAL := help
.PHONY: help build demo test check lint unit vm soak bench test-gpu fmt install clean FORCE

CARGO ?= cargo
FMT = $(CARGO) fmt --all -- --config-path .ci/rustfmt.toml
# The programs that scenarios run: malloc on an armed I/O thread ends the process.
GUARDED = target/guarded/debug
DESTDIR ?=
PREFIX ?= /usr

help:
	@sed -n 's/^#   //p' Makefile
	@echo 'also: build, check (= lint + unit), vm, vm/NAME, fmt, install, test-gpu, clean'

build: .ci/.tools
	$(CARGO) build --locked --release

demo: $(GUARDED)
	vm-tests/run --bin-dir $(GUARDED) --live demo

test: check vm

check: lint unit

lint: .ci/.tools
	$(FMT) --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	.ci/pure.sh
	.ci/deny.sh

unit: .ci/.tools
	$(CARGO) nextest run --locked --config-file .ci/nextest.toml
	$(CARGO) nextest run --locked --config-file .ci/nextest.toml \
		--features malloc-guard --target-dir target/guarded --test malloc_guard
	$(CARGO) test --locked --doc --quiet
	.ci/loom.sh
	python3 -m unittest discover -q -s vm-tests/harness -t vm-tests

vm: $(GUARDED)
	vm-tests/run --bin-dir $(GUARDED)

vm/%: $(GUARDED)
	vm-tests/run --bin-dir $(GUARDED) --verbose $*

soak: $(GUARDED)
	.ci/soak.sh $(GUARDED)

bench: build
	.ci/bench.sh target/release

test-gpu: build
	@echo 'make test-gpu: this version has no GPU tier, so there is nothing to test on a GPU' >&2; exit 1

$(GUARDED): FORCE | .ci/.tools
	$(CARGO) build --locked --features malloc-guard --target-dir target/guarded

fmt:
	$(FMT)

install: build
	install -Dm755 -t $(DESTDIR)$(PREFIX)/bin target/release/sluice target/release/sluice-store
	mkdir -p $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's|/usr/bin|$(PREFIX)/bin|' nixos-module/units/sluice-store.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/sluice-store.service
	mkdir -p $(DESTDIR)$(PREFIX)/share/man/man1
	target/release/sluice man --dir $(DESTDIR)$(PREFIX)/share/man/man1
	mkdir -p $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	target/release/sluice completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/sluice
	target/release/sluice completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_sluice
	target/release/sluice completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/sluice.fish

clean:
	$(CARGO) clean

# Installs what is missing, once per change of its list.
.ci/.tools: .ci/install.sh
	.ci/install.sh
	@touch $@
FORCE:
