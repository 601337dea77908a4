# SPDX-License-Identifier: MIT OR Apache-2.0
"""Owns one QEMU process: its command line, its control socket, its saved state."""

import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
from typing import Any

from .emulator import Emulator
from .errors import HarnessError, MachineStopped
from .image import Image

MIB = 1 << 20
PAYLOAD_BYTES = 256 * MIB

KERNEL_ARGUMENTS = """
    console=ttyS0 panic=-1 nokaslr mitigations=off lsm=landlock tsc=reliable nmi_watchdog=0
    audit=0 ipv6.disable=1 8250.nr_uarts=1 systemd.show_status=no systemd.log_color=no
""".split()

# An emulated string instruction goes byte by byte, an emulated five-level page walk is one
# load longer: without both, clearing pages and missing the TLB cost a third less.
EMULATED_KERNEL_ARGUMENTS = ["clearcpuid=erms,fsrm"]
PROCESSORS = {
    "tcg": ["-accel", "tcg,thread=multi", "-cpu", "max,la57=off"],
    "kvm": ["-accel", "kvm", "-cpu", "host"],
}


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What a machine is made of. A saved state fits only the hardware it was saved on."""

    memory_mib: int = 1024
    cpus: int = 2
    # Blank data drives: serial and size in bytes. The guest has them as
    # /dev/disk/by-id/virtio-SERIAL.
    disks: tuple[tuple[str, int], ...] = (("spill", 1024 * MIB), ("swap", 1024 * MIB))


@dataclasses.dataclass(frozen=True)
class Host:
    """What all machines of one run have in common."""

    emulator: Emulator
    image: Image
    accel: str

    def identity(self, hardware: Hardware) -> dict[str, object]:
        """Gives what a saved state depends on, for a cache key."""
        return {
            "qemu": self.emulator.version,
            "image": self.image.identity,
            "accel": self.accel,
            "hardware": dataclasses.asdict(hardware),
            "arguments": _arguments(self, hardware, pathlib.Path("/"), payload_at_boot=False),
        }


def _arguments(
    host: Host, hardware: Hardware, folder: pathlib.Path, *, payload_at_boot: bool
) -> list[str]:
    kernel_arguments = [*KERNEL_ARGUMENTS]
    if host.accel == "tcg":
        kernel_arguments += EMULATED_KERNEL_ARGUMENTS
    if payload_at_boot:
        kernel_arguments.append("sluice.payload")
    return [
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        *PROCESSORS[host.accel],
        "-machine",
        "q35,sata=off,smbus=off,usb=off,graphics=off,vmport=off,hpet=off,i8042=off",
        "-smp",
        str(hardware.cpus),
        "-m",
        f"{hardware.memory_mib}M",
        "-action",
        "reboot=shutdown",
        "-kernel",
        str(host.image.kernel),
        "-initrd",
        str(host.image.initrd),
        "-append",
        " ".join(kernel_arguments),
        "-drive",
        f"if=none,id=root,format=raw,file={host.image.root},cache=unsafe,readonly=on",
        "-device",
        "virtio-blk-pci,drive=root,serial=root",
        *_devices(folder, hardware),
    ]


def _devices(folder: pathlib.Path, hardware: Hardware) -> list[str]:
    arguments = [
        "-device",
        "virtio-serial-pci",
        "-chardev",
        f"socket,id=shell,path={folder}/shell.sock,server=on,wait=off",
        "-device",
        "virtserialport,chardev=shell,name=sluice.shell",
        "-chardev",
        f"file,id=console,path={folder}/console.log,append=on",
        "-serial",
        "chardev:console",
        "-qmp",
        f"unix:{folder}/qmp.sock,server=on,wait=off",
    ]
    writable = "cache=unsafe,discard=unmap"
    drives = [(f"{folder}/{serial}.img", serial, writable) for serial, _ in hardware.disks]
    drives.append((f"{folder}/payload.img", "payload", "cache=unsafe,readonly=on"))
    for file, serial, options in drives:
        arguments += [
            "-drive",
            f"if=none,id={serial},format=raw,file={file},{options}",
            "-device",
            f"virtio-blk-pci,drive={serial},serial={serial}",
        ]
    return arguments


class Qemu:
    """A machine that is switched on. Its files lie in a folder of its own."""

    def __init__(
        self,
        host: Host,
        hardware: Hardware,
        folder: pathlib.Path,
        *,
        state: pathlib.Path | None = None,
        payload_at_boot: bool = False,
    ) -> None:
        """Starts from a saved state, else boots; payload_at_boot unpacks before systemd."""
        self._folder = folder
        for name in ("shell.sock", "qmp.sock"):
            (folder / name).unlink(missing_ok=True)
        command = [
            *host.emulator.command,
            *_arguments(host, hardware, folder, payload_at_boot=payload_at_boot),
        ]
        if state:
            command += ["-incoming", f"file:{state}"]
        with open(folder / "qemu.log", "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A key press for the harness is not one for the machines.
                start_new_session=True,
            )
        try:
            self.shell = self._connect("shell.sock")
            self._qmp = self._connect("qmp.sock").makefile("rwb")
            # The answer to this comes after a greeting, which is no answer to anything.
            self.qmp("qmp_capabilities")
            if state:
                self._wait_for("query-status", "status", ("inmigrate",), ("paused",))
                self.qmp("cont")
        except BaseException:
            self.kill()
            raise

    def _connect(self, name: str) -> socket.socket:
        deadline = time.monotonic() + 60
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self._folder / name))
                return connection
            except OSError as error:
                connection.close()
                self._expect_alive()
                if time.monotonic() > deadline:
                    raise HarnessError(f"QEMU does not open {name} in 60 s: {error}") from error
            time.sleep(0.02)

    def _expect_alive(self) -> None:
        if self._process.poll() is not None:
            raise MachineStopped(f"QEMU ended ({self._process.returncode}): {self.messages()}")

    def messages(self) -> str:
        """Gives the end of what QEMU itself has printed."""
        text = (self._folder / "qemu.log").read_text(encoding="utf-8", errors="replace")
        return text.strip()[-2000:] or "it printed nothing"

    def qmp(self, command: str, **arguments: object) -> Any:
        """Sends a control command and gives its result."""
        request = {"execute": command, "arguments": arguments}
        try:
            self._qmp.write(json.dumps(request).encode() + b"\n")
            self._qmp.flush()
            while line := self._qmp.readline():
                reply = json.loads(line)
                if "error" in reply:
                    raise HarnessError(f"QEMU refuses {command}: {reply['error']['desc']}")
                if "return" in reply:
                    return reply["return"]
        except OSError:
            pass  # it has ended, and says below why
        self.kill()
        raise MachineStopped(f"QEMU ended at {command}: {self.messages()}")

    def monitor(self, command: str) -> str:
        """Gives a line to the monitor that people use, and gives what it says."""
        return str(self.qmp("human-monitor-command", **{"command-line": command}))

    def _wait_for(
        self, query: str, field: str, pending: tuple[str, ...], wanted: tuple[str, ...]
    ) -> None:
        deadline = time.monotonic() + 120
        while (value := self.qmp(query).get(field, pending[0])) in pending:
            if time.monotonic() > deadline:
                raise HarnessError(f"QEMU's {query} stays at {value}")
            time.sleep(0.02)
        if value not in wanted:
            raise HarnessError(f"QEMU's {query} says {value}: {self.messages()}")

    def save(self, state: pathlib.Path) -> None:
        """Stops the machine, saves its state (memory and devices, no disks), ends QEMU."""
        self.qmp("stop")
        # The default limits the rate for the sake of a network.
        self.qmp("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        self.qmp("migrate", uri=f"file:{state}")
        pending = ("setup", "active", "device")
        self._wait_for("query-migrate", "status", pending, ("completed",))
        self.kill()

    def running(self) -> bool:
        """Whether the machine is switched on."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> None:
        """Waits for the machine to switch itself off."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise MachineStopped(f"the machine is still on after {seconds:.0f} s") from error

    def kill(self) -> None:
        """Cuts the power."""
        if self.running():
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if hasattr(self, "shell"):
            self.shell.close()


def make_disks(folder: pathlib.Path, hardware: Hardware, payload: pathlib.Path | None) -> None:
    """Makes the machine's drives: blank ones, and the payload padded to its fixed size."""
    for serial, size in hardware.disks:
        with open(folder / f"{serial}.img", "wb") as file:
            file.truncate(size)
    drive = folder / "payload.img"
    if payload:
        # Read-only for the machine: all of a run may share one.
        drive.symlink_to(payload)
    else:
        with open(drive, "wb") as file:
            file.truncate(PAYLOAD_BYTES)
