# SPDX-License-Identifier: MIT OR Apache-2.0
"""The `machine` of a scenario: the NixOS test driver's interface, without a screen.

It knows how to be started (a function it is given) and speaks to a shell; it knows
neither images nor command lines.
"""

import base64
import pathlib
import re
import shlex
import time
from collections.abc import Callable
from typing import Protocol

from .errors import MachineStopped, ScenarioFailure
from .shell import Reply, Shell

DEFAULT_SECONDS = 900
POLL_SECONDS = 0.5
COPY_CHUNK = 60_000


class Power(Protocol):
    """A machine that is switched on, as far as `Machine` needs it."""

    def running(self) -> bool: ...
    def wait(self, seconds: float) -> None: ...
    def kill(self) -> None: ...
    def monitor(self, command: str) -> str: ...


# Switches the machine on. The argument says whether it has been on before, in which
# case it boots with its disks as they are.
Starter = Callable[[bool], tuple[Power, Shell]]


class Machine:
    """The virtual machine of one scenario."""

    def __init__(
        self,
        start: Starter,
        console: pathlib.Path,
        report: Callable[[str], None],
        name: str = "machine",
    ) -> None:
        self.name = name
        self._start = start
        self._console = console
        self._report = report
        self._power: Power | None = None
        self._shell: Shell | None = None
        self._was_on = False
        self.uptime = 0.0

    # --- power ---

    def start(self, allow_reboot: bool = False) -> None:
        """Switches the machine on; no effect on one that is on."""
        del allow_reboot  # a reboot is always a fresh start here
        if self._power and self._power.running():
            return
        self._power, self._shell = self._start(self._was_on)
        self._was_on = True

    def is_up(self) -> bool:
        """Whether the machine is switched on."""
        return bool(self._power and self._power.running())

    def crash(self) -> None:
        """Cuts the power."""
        self._report("cuts the power")
        self._on().kill()
        self._power = self._shell = None

    def shutdown(self) -> None:
        """Shuts the machine down in order and waits until it is off."""
        self._leave("poweroff")

    def reboot(self) -> None:
        """Shuts the machine down in order and boots it with the same disks."""
        self._leave("reboot")
        self.start()

    def send_monitor_command(self, command: str) -> str:
        """Gives a command to QEMU's monitor (`system_wakeup`, `info status`) and its answer."""
        return self._on().monitor(command)

    def wait_for_shutdown(self) -> None:
        """Waits until the machine is off."""
        self._on().wait(DEFAULT_SECONDS)
        self._power = self._shell = None

    def _leave(self, verb: str) -> None:
        power = self._on()
        # In the background, and detached: the shell must answer before it is stopped.
        self.succeed(f"systemd-run --quiet --no-block systemctl {verb}")
        power.wait(DEFAULT_SECONDS)
        self._power = self._shell = None

    def _on(self) -> Power:
        if not self._power:
            raise MachineStopped("the machine is off")
        return self._power

    def log(self, msg: str) -> None:
        """Puts a line into the run's log."""
        self._report(msg)

    # --- commands ---

    def execute(
        self,
        command: str,
        check_return: bool = True,
        check_output: bool = True,
        timeout: float | None = DEFAULT_SECONDS,
    ) -> tuple[int, str]:
        """Runs a command in bash, gives its exit status and standard output.

        Status 124: it ran past timeout (seconds). Without check_output the command is left
        running and the status is -2; without check_return the status is -1.
        """
        if not check_output:
            self._run(f"({command}) >/dev/null &", timeout)
            return -2, ""
        reply = self._run(command, timeout)
        return (reply.status if check_return else -1), reply.output

    def _run(self, command: str, timeout: float | None) -> Reply:
        self.start()
        assert self._shell is not None
        reply = self._shell.run(command, timeout)
        self.uptime = reply.uptime
        return reply

    def succeed(self, *commands: str, timeout: float | None = DEFAULT_SECONDS) -> str:
        """Runs the commands, each of which must succeed; gives their output."""
        output = ""
        for command in commands:
            self._report(f"must succeed: {command}")
            status, text = self.execute(command, timeout=timeout)
            if status != 0:
                raise ScenarioFailure(
                    f"command failed with status {status}: {command}\n{text.rstrip()}"
                )
            output += text
        return output

    def fail(self, *commands: str, timeout: float | None = DEFAULT_SECONDS) -> str:
        """Runs the commands, each of which must fail; gives their output.

        A command that ran past timeout has not failed, it has hung: that is an error.
        """
        output = ""
        for command in commands:
            self._report(f"must fail: {command}")
            status, text = self.execute(command, timeout=timeout)
            if status == 0:
                raise ScenarioFailure(f"command succeeded: {command}\n{text.rstrip()}")
            if status in (124, 137):
                raise ScenarioFailure(f"command did not end in {timeout} s: {command}")
            output += text
        return output

    def sleep(self, secs: float) -> None:
        """Lets that many seconds of the guest pass."""
        self.succeed(f"sleep {secs}")

    # --- waiting ---

    def _retry(self, what: str, attempt: Callable[[], bool], timeout: float) -> None:
        """Asks until attempt says true; timeout counts the guest's seconds."""
        self._report(f"waits until {what}")
        self._run("true", timeout)
        end = self.uptime + timeout
        while not attempt():
            if self.uptime > end:
                raise ScenarioFailure(f"not so within {timeout:.0f} s: {what}")
            time.sleep(POLL_SECONDS)

    def wait_until_succeeds(self, command: str, timeout: float = DEFAULT_SECONDS) -> str:
        """Repeats a command until it succeeds; gives its output."""
        output = ""

        def attempt() -> bool:
            nonlocal output
            status, output = self.execute(command, timeout=timeout)
            return status == 0

        self._retry(f"succeeds: {command}", attempt, timeout)
        return output

    def wait_until_fails(self, command: str, timeout: float = DEFAULT_SECONDS) -> str:
        """Repeats a command until it fails; gives its output."""
        output = ""

        def attempt() -> bool:
            nonlocal output
            status, output = self.execute(command, timeout=timeout)
            return status != 0

        self._retry(f"fails: {command}", attempt, timeout)
        return output

    def wait_for_file(self, filename: str, timeout: float = DEFAULT_SECONDS) -> None:
        """Waits until a file is there."""
        self.wait_until_succeeds(f"test -e {shlex.quote(filename)}", timeout)

    def wait_for_open_unix_socket(
        self, addr: str, is_datagram: bool = False, timeout: float = DEFAULT_SECONDS
    ) -> None:
        """Waits until something listens on a Unix socket."""
        kind = "-x" if is_datagram else "-xl"
        self.wait_until_succeeds(f"ss -H {kind} | grep -qF {shlex.quote(addr)}", timeout)

    def wait_for_console_text(self, regex: str, timeout: float = DEFAULT_SECONDS) -> None:
        """Waits until the console's log (all of it) has a match."""
        wanted = re.compile(regex)

        def attempt() -> bool:
            self._run("true", timeout)  # for the guest's clock
            return bool(wanted.search(self.get_console_log()))

        self._retry(f"the console shows {regex!r}", attempt, timeout)

    def get_console_log(self) -> str:
        """Gives what the machine has written to its console: kernel messages, standard errors."""
        return self._console.read_text(encoding="utf-8", errors="replace")

    # --- systemd ---

    def systemctl(self, q: str, user: str | None = None) -> tuple[int, str]:
        """Runs systemctl; gives its status and output."""
        if user is not None:
            raise ScenarioFailure("the test image has no user sessions")
        return self.execute(f"systemctl {q}")

    def get_unit_info(self, unit: str, user: str | None = None) -> dict[str, str]:
        """Gives all properties of a unit."""
        status, text = self.systemctl(f"--no-pager show {shlex.quote(unit)}", user)
        if status != 0:
            raise ScenarioFailure(f"systemctl show {unit} failed with status {status}")
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def get_unit_property(self, unit: str, property: str, user: str | None = None) -> str:  # noqa: A002
        """Gives one property of a unit."""
        command = f"--no-pager show {shlex.quote(unit)} --value --property={property}"
        status, text = self.systemctl(command, user)
        if status != 0:
            raise ScenarioFailure(f"systemctl show {unit} failed with status {status}")
        return text.rstrip("\n")

    def require_unit_state(self, unit: str, require_state: str = "active") -> None:
        """Fails where a unit is not in that state."""
        state = self.get_unit_property(unit, "ActiveState")
        if state != require_state:
            raise ScenarioFailure(f"unit {unit} is {state}, not {require_state}")

    def wait_for_unit(
        self, unit: str, user: str | None = None, timeout: float = DEFAULT_SECONDS
    ) -> None:
        """Waits until a unit is active; one that has failed, or that nothing starts, fails it."""

        def attempt() -> bool:
            state = self.get_unit_property(unit, "ActiveState", user)
            if state == "failed":
                raise ScenarioFailure(f"unit {unit} has failed")
            if state == "inactive" and not self.systemctl("list-jobs --no-legend")[1].strip():
                # It may have become active between the two questions.
                if self.get_unit_property(unit, "ActiveState", user) == "inactive":
                    raise ScenarioFailure(f"unit {unit} is inactive and there are no pending jobs")
            return state == "active"

        self._retry(f"unit {unit} is active", attempt, timeout)

    def start_job(self, jobname: str, user: str | None = None) -> tuple[int, str]:
        """Starts a unit."""
        return self.systemctl(f"start {jobname}", user)

    def stop_job(self, jobname: str, user: str | None = None) -> tuple[int, str]:
        """Stops a unit."""
        return self.systemctl(f"stop {jobname}", user)

    # --- files ---

    def copy_from_host(self, source: str, target: str) -> None:
        """Copies a file or folder of the host into the machine."""
        path = pathlib.Path(source)
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
        if not files:
            raise ScenarioFailure(f"the host has no file at {source}")
        for file in files:
            inside = pathlib.PurePosixPath(target, *file.relative_to(path).parts)
            self._put(file.read_bytes(), str(inside), file.stat().st_mode & 0o777)

    def _put(self, content: bytes, target: str, mode: int) -> None:
        quoted = shlex.quote(target)
        self.succeed(f'mkdir -p "$(dirname {quoted})" && : >{quoted} && chmod {mode:o} {quoted}')
        for start in range(0, len(content), COPY_CHUNK):
            chunk = base64.b64encode(content[start : start + COPY_CHUNK]).decode()
            status, _ = self.execute(f"base64 -d <<<'{chunk}' >>{quoted}")
            if status != 0:
                raise ScenarioFailure(f"cannot write {target} in the machine")

    def copy_from_machine(self, source: str, target_dir: str = "") -> None:
        """Copies a file of the machine into a folder of the host."""
        text = self.succeed(f"base64 -w0 {shlex.quote(source)}")
        folder = pathlib.Path(target_dir) if target_dir else self._console.parent
        folder.mkdir(parents=True, exist_ok=True)
        (folder / pathlib.PurePosixPath(source).name).write_bytes(base64.b64decode(text))
