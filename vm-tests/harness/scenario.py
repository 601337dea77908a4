# SPDX-License-Identifier: MIT OR Apache-2.0
"""One scenario: what its header says, and one run of it on a machine of its own.

The header is one line, read without running the file, as in
`# vm: boot=cold memory=2048 disks=spill:512M timeout=600 binaries=none`.
"""

import contextlib
import dataclasses
import pathlib
import re
import shutil
import threading
import time
import traceback
import unittest
from collections.abc import Callable, Iterator

from .errors import HarnessError, MachineStopped, ScenarioFailure
from .machine import Machine
from .qemu import Hardware, Host, Qemu, make_disks
from .shell import Shell

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "scenarios"
PRELUDE = FOLDER.parent / "common/prelude.py"
DEFAULT_TIMEOUT = 600
AUTOPSY_SECONDS = 60
TAIL_LINES = 40

# What no machine may ever say, whatever a scenario tests.
KERNEL_FAULT = re.compile(
    r"Kernel panic|Oops:|general protection fault|BUG: (?!workqueue)|blocked for more than \d+"
)
SIZE = re.compile(r"^([1-9][0-9]*)([MG])$")
UNIT = {"M": 1 << 20, "G": 1 << 30}


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What is known of a scenario before it runs."""

    name: str
    path: pathlib.Path
    cold: bool
    restores_again: bool
    hardware: Hardware
    timeout: int
    needs_binaries: bool
    needs_policies: bool

    @property
    def is_soak(self) -> bool:
        """Whether it takes hours, so that it runs only when asked for by name."""
        return self.name.startswith("soak/")


@dataclasses.dataclass
class Result:
    """How a run of a scenario ended. An empty error is success."""

    name: str
    seconds: float = 0.0
    start_seconds: float = 0.0
    error: str = ""
    log: str = ""

    @property
    def ok(self) -> bool:
        """Whether all that the scenario demanded held."""
        return not self.error


def load_all() -> dict[str, Scenario]:
    """Gives all scenarios by name, each header checked."""
    return {item.name: item for item in map(load, sorted(FOLDER.rglob("*.py")))}


def load(path: pathlib.Path) -> Scenario:
    """Reads a scenario's header."""
    words: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# vm:"):
            for word in line.removeprefix("# vm:").split():
                key, equals, value = word.partition("=")
                if not equals or key in words:
                    raise HarnessError(f"{path}: {word!r} in the header is no single key=value")
                words[key] = value
    boot = _choice(path, "boot", words.pop("boot", "snapshot"), ("snapshot", "cold", "restored"))
    binaries = _choice(path, "binaries", words.pop("binaries", "sluice"), ("sluice", "none", "policies"))
    usual = Hardware()
    hardware = Hardware(
        memory_mib=_number(path, "memory", words.pop("memory", str(usual.memory_mib))),
        cpus=_number(path, "cpus", words.pop("cpus", str(usual.cpus))),
        disks=_disks(path, words.pop("disks")) if "disks" in words else usual.disks,
    )
    timeout = _number(path, "timeout", words.pop("timeout", str(DEFAULT_TIMEOUT)))
    if words:
        raise HarnessError(
            f"{path}: unknown {', '.join(words)} in the header; "
            "known are boot, binaries, memory, cpus, disks, timeout"
        )
    if boot != "cold" and hardware != usual:
        raise HarnessError(
            f"{path}: hardware of its own needs boot=cold, the saved state has {usual}"
        )
    inside = path.relative_to(FOLDER) if path.is_relative_to(FOLDER) else pathlib.Path(path.name)
    name = inside.with_suffix("").as_posix()
    return Scenario(
        name,
        path,
        cold=boot == "cold",
        restores_again=boot == "restored",
        hardware=hardware,
        timeout=timeout,
        needs_binaries=binaries == "sluice",
        needs_policies=binaries == "policies",
    )


def _choice(path: pathlib.Path, key: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise HarnessError(f"{path}: {key}={value} in the header, not one of {', '.join(choices)}")
    return value


def _number(path: pathlib.Path, key: str, value: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]*", value):
        raise HarnessError(f"{path}: {key}={value} in the header is no positive number")
    return int(value)


def _disks(path: pathlib.Path, value: str) -> tuple[tuple[str, int], ...]:
    disks = []
    for word in value.split(","):
        serial, _, size = word.partition(":")
        found = SIZE.match(size)
        if not serial or not found:
            raise HarnessError(
                f"{path}: disk {word!r} in the header is not SERIAL:SIZE, as spill:512M"
            )
        disks.append((serial, int(found[1]) * UNIT[found[2]]))
    return tuple(disks)


class _Run:
    """One run: its folder, its log of steps, its machine, its limit of time."""

    def __init__(
        self,
        scenario: Scenario,
        host: Host,
        state: pathlib.Path | None,
        payload: pathlib.Path,
        folder: pathlib.Path,
        narrate: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._scenario = scenario
        self._host = host
        self._state = state
        self._payload = payload
        self._folder = folder
        self._narrate = narrate
        self._say = say
        self._begin = time.monotonic()
        self._steps = open(folder / "steps.log", "w", encoding="utf-8", buffering=1)
        self._qemu: Qemu | None = None
        self._overdue = False
        self._subtests: list[str] = []
        self.start_seconds = 0.0
        (folder / "console.log").touch()
        self.machine = Machine(self._switch_on, folder / "console.log", self.report)

    def report(self, text: str) -> None:
        line = f"[{time.monotonic() - self._begin:7.1f}] {text}"
        print(line, file=self._steps)
        self._narrate(line)

    def print(self, *values: object) -> None:
        """What `print` is to a scenario: a line for whoever watches, and for the log."""
        line = " ".join(str(value) for value in values)
        print(line, file=self._steps)
        self._say(line)

    def _switch_on(self, again: bool) -> tuple[Qemu, Shell]:
        if self._overdue:
            raise MachineStopped("the scenario's time is over")
        begin = time.monotonic()
        if not again:
            make_disks(self._folder, self._scenario.hardware, self._payload)
        restored = self._scenario.restores_again if again else not self._scenario.cold
        self._qemu = Qemu(
            self._host,
            self._scenario.hardware,
            self._folder,
            state=self._state if restored else None,
            payload_at_boot=not restored,
        )
        shell = Shell(self._qemu.shell)
        if restored:
            shell.run("true", None)
        else:
            shell.wait_until_ready()
        took = time.monotonic() - begin
        self.start_seconds = self.start_seconds or took
        self.report(f"the machine answers after {took:.1f} s")
        return self._qemu, shell

    @contextlib.contextmanager
    def subtest(self, name: str) -> Iterator[None]:
        self.report(f"subtest: {name}")
        self._subtests.append(name)
        yield
        self._subtests.pop()

    @contextlib.contextmanager
    def _limit(self, seconds: float) -> Iterator[None]:
        def stop() -> None:
            self._overdue = True
            if self._qemu:
                self._qemu.kill()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def execute(self) -> str:
        """Runs the scenario's text and gives what is wrong, or nothing."""
        names = {
            "machine": self.machine,
            "subtest": self.subtest,
            "t": unittest.TestCase(),
            "start_all": self.machine.start,
            "print": self.print,
        }
        try:
            with self._limit(self._scenario.timeout):
                for path in (PRELUDE, self._scenario.path):
                    code = compile(path.read_text(encoding="utf-8"), str(path), "exec")
                    exec(code, names)  # pylint: disable=exec-used
            return self._kernel_fault()
        except BaseException as error:  # a scenario may raise anything
            if isinstance(error, (KeyboardInterrupt, HarnessError)):
                raise
            return self._describe(error)

    def _kernel_fault(self) -> str:
        found = KERNEL_FAULT.search(self.machine.get_console_log())
        return f"the kernel reported a fault: {found[0]}" if found else ""

    def _describe(self, error: BaseException) -> str:
        frames = traceback.extract_tb(error.__traceback__)
        places = (FOLDER, PRELUDE.parent)
        own = [f for f in frames if any(map(pathlib.Path(f.filename).is_relative_to, places))]
        where = "".join(f"{f.filename}:{f.lineno}: {f.line}\n" for f in own)
        inside = "".join(f"in subtest: {name}\n" for name in self._subtests)
        if self._overdue:
            text = f"the scenario's {self._scenario.timeout} s are over"
        elif isinstance(error, ScenarioFailure):
            text = str(error)
        else:
            text = "".join(traceback.format_exception_only(error)).rstrip()
        fault = self._kernel_fault()
        return f"{where}{inside}{text}" + (f"\n{fault}" if fault else "")

    def autopsy(self) -> None:
        """Asks a machine that is still on for what its console does not show."""
        if self._overdue or not self.machine.is_up():
            return
        with contextlib.suppress(ScenarioFailure), self._limit(AUTOPSY_SECONDS):
            for name, command in {
                "journal.log": "journalctl -b --no-pager -o short-monotonic",
                "state.log": "cat /proc/swaps /proc/meminfo; systemctl --no-pager --failed; "
                "ps -eo pid,stat,wchan:24,rss,args",
            }.items():
                _, text = self.machine.execute(command, timeout=AUTOPSY_SECONDS)
                (self._folder / name).write_text(text, encoding="utf-8")

    def close(self) -> None:
        if self._qemu:
            self._qemu.kill()
        self._steps.close()


def run(
    scenario: Scenario,
    host: Host,
    state: pathlib.Path | None,
    payload: pathlib.Path,
    folder: pathlib.Path,
    keep: bool,
    narrate: Callable[[str], None],
    say: Callable[[str], None],
) -> Result:
    """Runs a scenario once. Its folder stays where it failed (logs) or keep is set (all)."""
    folder.mkdir()
    begin = time.monotonic()
    this = _Run(scenario, host, state, payload, folder, narrate, say)
    result = Result(scenario.name)
    try:
        result.error = this.execute()
        if result.error:
            this.autopsy()
    finally:
        this.close()
    result.seconds = time.monotonic() - begin
    result.start_seconds = this.start_seconds
    if keep or result.error:
        result.log = str(folder)
    if not keep:
        for image in folder.glob("*.img"):
            image.unlink()
        if result.ok:
            shutil.rmtree(folder)
    return result


def tail(folder: str) -> str:
    """Gives the ends of a failed run's logs, for a person to read."""
    parts = []
    for name in ("steps.log", "console.log", "journal.log"):
        path = pathlib.Path(folder) / name
        if path.exists():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
            parts.append(f"--- end of {name} ---\n" + "\n".join(lines))
    return "\n".join(parts)
