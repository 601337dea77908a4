# SPDX-License-Identifier: MIT OR Apache-2.0
# Verbs only; each does what it says from a bare machine on.
#   make demo    boot a machine, fill its memory, watch the pages go and come back
#   make test    everything that must hold, once (aims at 45 minutes on two slow cores)
#   make soak    what needs hours: long fuzzing, an hour of pressure, repeated kills
#   make bench   figures, each beside its peer
#   make test-gpu   what needs an NVIDIA GPU, on a machine that has one
.DEFAULT_GOAL := help
.PHONY: help build demo test check lint unit nix nix-full vm vm-newest kernel driver-rules driver-matrix soak bench test-gpu fmt install clean FORCE

CARGO ?= cargo
FMT = $(CARGO) fmt --all -- --config-path .ci/rustfmt.toml
# The programs that scenarios run: malloc on an armed I/O thread ends the process.
GUARDED = target/guarded/debug
DESTDIR ?=
PREFIX ?= /usr
RELEASE = target/release
PROGRAMS ?= $(RELEASE)
# Below PREFIX.
UNIT_DIR = lib/systemd/system
MAN_DIR = share/man/man1
COMPLETIONS = share/bash-completion/completions share/zsh/site-functions share/fish/vendor_completions.d
# Where sessions look for what they start; not below PREFIX.
SYSCONFDIR ?= /etc

help:
	@sed -n 's/^#   //p' Makefile
	@echo 'also: build, check (= lint + unit), nix, nix-full, vm, vm/NAME, vm-newest, kernel, driver-rules, driver-matrix, fmt, install, clean'

build: .ci/.tools
	$(CARGO) build --locked --release

demo: $(GUARDED)
	vm-tests/run --bin-dir $(GUARDED) --live demo

test: check nix driver-rules vm

check: lint unit

lint: .ci/.tools
	$(FMT) --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	.ci/pure.sh
	.ci/deny.sh
	.ci/shader.sh
	kernel-module/reference.py --check
	docs/figures/plot.py --check

unit: .ci/.tools
	$(CARGO) nextest run --locked --config-file .ci/nextest.toml -p sluice -p sluice-fake-cuda -p sluice-policy
	$(CARGO) nextest run --locked --config-file .ci/nextest.toml \
		--features malloc-guard --target-dir target/guarded --test malloc_guard
	$(CARGO) test --locked --doc --quiet
	.ci/loom.sh
	python3 -m unittest discover -q -s vm-tests/harness -t vm-tests
	python3 -m unittest discover -q -s kernel-module

# The NixOS module evaluated, without Nix on this machine. BLESS=1 accepts what changed.
nix: .ci/.tools
	$(CARGO) build --locked
	nixos-module/tests/run

# The same on a whole NixOS, from a checkout of nixpkgs: make nix-full NIXPKGS=path
nix-full: .ci/.tools
	nixos-module/tests/full $(NIXPKGS)

vm: $(GUARDED) kernel
	vm-tests/run --bin-dir $(GUARDED)

vm/%: $(GUARDED) kernel
	vm-tests/run --bin-dir $(GUARDED) --verbose $*

# The scenarios of the policies, on the newest kernel that Debian has.
vm-newest: $(GUARDED) kernel
	$(MAKE) -C kernel-module newest
	SLUICE_VM_KERNEL=$$(cat target/newest/release) SLUICE_VM_MODULES=target/newest \
		vm-tests/run --bin-dir $(GUARDED) $(basename $(notdir $(wildcard vm-tests/scenarios/policy-*.py)))

# The modules, the policies, and the programs that load and test them.
kernel: .ci/.tools
	$(MAKE) -C kernel-module
	$(CARGO) build --locked -p sluice-policy

# The semantic patches on Debian's two versions of NVIDIA's driver. Compiles nothing.
driver-rules: .ci/.tools
	kernel-module/driver.py check 535.261.03 550.163.01

# On all versions of driver.lock: make driver-matrix SRC=repository of the public source
driver-matrix: .ci/.tools
	kernel-module/driver.py matrix $(SRC)

soak: $(GUARDED)
	.ci/soak.sh $(GUARDED)

bench: build
	.ci/bench.sh target/release

# Needs an NVIDIA GPU; nothing is skipped. Runs what was built elsewhere, too.
test-gpu:
	.ci/gpu.sh

$(GUARDED): FORCE | .ci/.tools
	$(CARGO) build --locked --features malloc-guard --target-dir target/guarded
	$(CARGO) build --locked -p sluice-fake-cuda --target-dir target/guarded

fmt:
	$(FMT)

# PROGRAMS: the folder of a build that is there already, in place of a release build.
install: $(if $(filter $(RELEASE),$(PROGRAMS)),build)
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin $(UNIT_DIR) $(MAN_DIR) $(COMPLETIONS))
	install -m755 -t $(DESTDIR)$(PREFIX)/bin $(addprefix $(PROGRAMS)/,sluice sluice-store sluiced sluice-tray)
	@# With its program, by kernel-module/Makefile.
	for unit in $(filter-out %/sluice-policy.service,$(wildcard nixos-module/units/*.service)); do \
		sed 's|/usr/bin|$(PREFIX)/bin|g' $$unit > $(DESTDIR)$(PREFIX)/$(UNIT_DIR)/$${unit##*/} || exit 1; \
	done
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/dbus-1/system.d nixos-module/dbus/org.sluice.Sluice1.conf
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/dbus-1/system-services nixos-module/dbus/org.sluice.Sluice1.service
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/dbus-1/interfaces nixos-module/dbus/org.sluice.Sluice1.xml
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/polkit-1/actions nixos-module/polkit/org.sluice.policy
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/polkit-1/rules.d nixos-module/polkit/50-sluice.rules
	install -Dm644 nixos-module/polkit/sluice.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/sluice.conf
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/applications nixos-module/desktop/sluice-tray.desktop
	install -Dm644 -t $(DESTDIR)$(SYSCONFDIR)/xdg/autostart nixos-module/desktop/sluice-tray.desktop
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/icons/hicolor/scalable/status nixos-module/desktop/icons/*.svg
	$(PROGRAMS)/sluice man --dir $(DESTDIR)$(PREFIX)/$(MAN_DIR)
	for program in sluice sluice-tray; do \
		$(PROGRAMS)/sluice completions bash --program $$program > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$program && \
		$(PROGRAMS)/sluice completions zsh --program $$program > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_$$program && \
		$(PROGRAMS)/sluice completions fish --program $$program > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$program.fish || exit 1; \
	done

clean:
	$(CARGO) clean

# Installs what is missing, once per change of its list.
.ci/.tools: .ci/install.sh
	.ci/install.sh
	@touch $@
FORCE:
