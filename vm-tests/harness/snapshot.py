# SPDX-License-Identifier: MIT OR Apache-2.0
"""Owns the saved states: a machine booted once, restored in a second ever after.

Two of them, each in the cache: one of the bare image, and one made from it in which the
payload is unpacked, which is what a scenario restores.
"""

import contextlib
import pathlib
import tempfile
import time
from collections.abc import Iterator

from . import cache
from .errors import HarnessError, ScenarioFailure
from .machine import Machine
from .qemu import Hardware, Host, Qemu, make_disks
from .shell import Shell

BOOT_SECONDS = 300
ACCEL_PROBE_SECONDS = 30

UNPACK = """
    blockdev --flushbufs /dev/disk/by-id/virtio-payload
    tar -x -C / -f /dev/disk/by-id/virtio-payload
    systemctl daemon-reload
    sync
"""


@contextlib.contextmanager
def _workplace() -> Iterator[pathlib.Path]:
    # Not below the cache: a socket's path may have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="sluice-vm-") as folder:
        yield pathlib.Path(folder)


def bare(host: Host, hardware: Hardware) -> pathlib.Path:
    """Gives the state of a booted machine without payload."""

    def make(folder: pathlib.Path) -> None:
        print("booting the image to save its state", flush=True)
        with _workplace() as place:
            make_disks(place, hardware, None)
            qemu = Qemu(host, hardware, place)
            try:
                _settle(qemu, place)
                qemu.save(folder / "state")
            finally:
                qemu.kill()

    return cache.entry("bare", host.identity(hardware), make) / "state"


def _settle(qemu: Qemu, place: pathlib.Path) -> None:
    shell = Shell(qemu.shell)
    shell.wait_until_ready()
    machine = Machine(lambda _: (qemu, shell), place / "console.log", lambda _: None)
    try:
        machine.wait_for_unit("multi-user.target", timeout=BOOT_SECONDS)
        # Nothing of the boot may still be running in the state.
        machine.succeed(
            "udevadm settle; systemctl is-system-running --wait; sync", timeout=BOOT_SECONDS
        )
    except ScenarioFailure as error:
        tail = machine.get_console_log()[-3000:]
        raise HarnessError(f"the image does not boot: {error}\n{tail}") from error


def with_payload(host: Host, hardware: Hardware, payload: pathlib.Path) -> pathlib.Path:
    """Gives the state of a booted machine that has the payload."""
    start = bare(host, hardware)

    def make(folder: pathlib.Path) -> None:
        print("saving the state with the programs under test", flush=True)
        with _workplace() as place:
            make_disks(place, hardware, payload)
            qemu = Qemu(host, hardware, place, state=start)
            try:
                reply = Shell(qemu.shell).run(UNPACK, BOOT_SECONDS)
                if reply.status != 0:
                    console = (place / "console.log").read_text(errors="replace")[-2000:]
                    raise HarnessError(f"cannot unpack the payload in the machine:\n{console}")
                qemu.save(folder / "state")
            finally:
                qemu.kill()

    inputs = {"bare": start.parent.name, "payload": payload.parent.name, "unpack": UNPACK}
    return cache.entry("loaded", inputs, make) / "state"


def choose_accel(host: Host, forced: str | None) -> str:
    """Gives "kvm" where a machine really boots with it, else "tcg"; forced wins untried."""
    if forced is not None:
        if forced not in ("kvm", "tcg"):
            raise HarnessError(f"SLUICE_VM_ACCEL is {forced!r}: it must be kvm or tcg")
        return forced
    device = pathlib.Path("/dev/kvm")
    try:
        device.open("r+b", buffering=0).close()
    except OSError:
        return "tcg"
    # What is true of a host stays true until it boots again.
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    hardware = Hardware()

    def make(folder: pathlib.Path) -> None:
        accel = "kvm" if _boots(host, hardware) else "tcg"
        (folder / "accel").write_text(accel, encoding="ascii")

    inputs = {"boot": boot, **host.identity(hardware)}
    return (cache.entry("accel", inputs, make) / "accel").read_text(encoding="ascii")


def _boots(host: Host, hardware: Hardware) -> bool:
    with _workplace() as place:
        make_disks(place, hardware, None)
        try:
            qemu = Qemu(host, hardware, place)
        except ScenarioFailure:
            return False
        try:
            qemu.shell.settimeout(ACCEL_PROBE_SECONDS)
            start = time.monotonic()
            Shell(qemu.shell).wait_until_ready()
            return time.monotonic() - start < ACCEL_PROBE_SECONDS
        except ScenarioFailure:
            return False
        finally:
            qemu.kill()
