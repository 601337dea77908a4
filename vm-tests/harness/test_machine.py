# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a scenario may rely on, tried with the real guest shell but without QEMU."""

import contextlib
import io
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import unittest
from collections.abc import Callable
from unittest import mock

from . import run, scenario
from .errors import HarnessError, MachineStopped, ScenarioFailure
from .image import GUEST
from .machine import Machine
from .qemu import Hardware, Host
from .shell import Reply, Shell
from .testing import sentences


class GuestShell:
    """The guest's program on this host, in the place of a switched-on machine."""

    def __init__(self, console: pathlib.Path) -> None:
        self.shell, inside = socket.socketpair()
        number = inside.fileno()
        command = f'exec 3<&{number} {number}<&-; exec bash "$0" "$1"'
        self._process = subprocess.Popen(
            ["bash", "-c", command, GUEST / "shell", console],
            pass_fds=[number],
            start_new_session=True,
        )
        inside.close()

    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float) -> None:
        self._process.wait(seconds)

    def kill(self) -> None:
        if self.running():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.shell.close()


class MachineRunsCommands(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.steps: list[str] = []
        self.machine = Machine(self._start, self.folder / "console.log", self.steps.append)
        (self.folder / "console.log").touch()

    def _start(self, again: bool) -> tuple[GuestShell, Shell]:
        self.guest = GuestShell(self.folder / "console.log")
        self.addCleanup(self.guest.kill)
        shell = Shell(self.guest.shell)
        shell.wait_until_ready()
        return self.guest, shell

    def _refused(self, action: Callable[[], object], pattern: str) -> None:
        with self.assertRaisesRegex(ScenarioFailure, pattern):
            action()

    def status_and_output_arrive_unchanged(self) -> None:
        self.assertEqual(self.machine.execute("echo out; exit 7"), (7, "out\n"))
        text = "1 0 5 aGk=\n\t\x01\x7f ä\n\n"
        self.assertEqual(self.machine.succeed(f"printf %s '{text}'"), text)
        self.assertEqual(self.machine.succeed("echo one", "echo two"), "one\ntwo\n")

    def standard_error_goes_to_the_console(self) -> None:
        self.assertEqual(self.machine.succeed("echo words >&2"), "")
        self.assertEqual(self.machine.get_console_log(), "words\n")

    def a_failing_command_is_a_failure_that_names_it(self) -> None:
        self._refused(lambda: self.machine.succeed("echo why; exit 3"), "status 3: echo why")

    def a_failing_part_of_a_pipe_counts(self) -> None:
        self._refused(lambda: self.machine.succeed("false | true"), "status 1")
        self._refused(lambda: self.machine.succeed("false; true"), "status 1")

    def a_succeeding_command_is_a_failure_where_it_must_fail(self) -> None:
        self._refused(lambda: self.machine.fail("true"), "command succeeded: true")

    def a_command_that_hangs_has_not_failed(self) -> None:
        self.assertEqual(self.machine.execute("sleep 100", timeout=1)[0], 124)
        self._refused(lambda: self.machine.fail("sleep 100", timeout=1), "did not end in 1 s")

    def waiting_ends_with_a_failure(self) -> None:
        self._refused(lambda: self.machine.wait_until_succeeds("false", timeout=0), "not so within")
        self._refused(lambda: self.machine.wait_until_fails("true", timeout=0), "not so within")

    def waiting_for_a_unit_that_failed_or_that_nothing_starts_is_a_failure(self) -> None:
        fake = self.folder / "systemctl"
        with mock.patch.dict("os.environ", PATH=f"{self.folder}:/usr/bin:/bin"):
            for state, pattern in (("failed", "has failed"), ("inactive", "no pending jobs")):
                fake.write_text(f'#!/bin/sh\ncase "$*" in *show*) echo {state};; esac\n')
                fake.chmod(0o755)
                self._refused(lambda: self.machine.wait_for_unit("some.service"), pattern)

    def copied_files_are_the_same(self) -> None:
        source = self.folder / "blob"
        source.write_bytes(bytes(range(256)) * 700)
        source.chmod(0o640)
        target = self.folder / "deep" / "copy"
        self.machine.copy_from_host(str(source), str(target))
        self.assertEqual(target.read_bytes(), source.read_bytes())
        self.assertEqual(target.stat().st_mode & 0o777, 0o640)

    def a_machine_that_stops_is_a_failure_not_a_hang(self) -> None:
        self.machine.start()
        threading.Timer(0.2, self.guest.kill).start()
        with self.assertRaises(MachineStopped):
            self.machine.succeed("sleep 100")


class ShellReadsReplies(unittest.TestCase):
    def a_reply_to_something_else_is_refused(self) -> None:
        here, there = socket.socketpair()
        with here, there:
            there.sendall(b"9 0 1.5 \n")
            with self.assertRaisesRegex(MachineStopped, "'9' where '1' was due"):
                Shell(here).run("true", 1)

    def waiting_counts_the_seconds_of_the_guest(self) -> None:
        uptimes = iter(range(0, 1000, 40))

        shell = mock.Mock()
        shell.run = lambda *_: Reply(1, "", float(next(uptimes)))
        power = mock.Mock()
        machine = Machine(lambda _: (power, shell), pathlib.Path("/dev/null"), lambda _: None)
        with self.assertRaises(ScenarioFailure), mock.patch("time.sleep"):
            machine.wait_until_succeeds("false", timeout=100)
        self.assertEqual(machine.uptime, 120.0)


class ScenarioFails(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.runs = 0

    def _run(self, text: str, console: str = "") -> scenario.Result:
        path = self.folder / "example.py"
        path.write_text(text, encoding="utf-8")
        self.runs += 1
        out = self.folder / f"run-{self.runs}"

        def switch_on(*_: object, **__: object) -> GuestShell:
            (out / "console.log").write_text(console, encoding="utf-8")
            return GuestShell(out / "console.log")

        # The greeting stands for the answer of a restored machine.
        header = scenario.load(path)
        with (
            mock.patch.object(scenario, "Qemu", switch_on),
            mock.patch.object(scenario, "FOLDER", self.folder),
            mock.patch.object(scenario, "make_disks"),
        ):
            host = mock.Mock(spec=Host)
            quiet = lambda _: None  # noqa: E731
            return scenario.run(header, host, None, path, out, False, narrate=quiet, say=quiet)

    def where_a_command_fails(self) -> None:
        result = self._run("# vm: boot=cold\nmachine.succeed('true')\nmachine.succeed('exit 4')\n")
        self.assertIn("example.py:3: machine.succeed('exit 4')", result.error)
        self.assertIn("status 4", result.error)
        self.assertIn("exit 4", scenario.tail(result.log))

    def where_an_assertion_does_not_hold_and_says_in_which_subtest(self) -> None:
        result = self._run(
            "# vm: boot=cold\nwith subtest('sums'):\n    assert machine.succeed('echo 1') == '2'\n"
        )
        self.assertIn("AssertionError", result.error)
        self.assertIn("in subtest: sums", result.error)

    def where_it_raises_anything(self) -> None:
        self.assertIn("ZeroDivisionError", self._run("# vm: boot=cold\n1 / 0\n").error)
        self.assertIn("SystemExit", self._run("# vm: boot=cold\nraise SystemExit(0)\n").error)

    def where_the_kernel_reports_a_fault(self) -> None:
        for line in (
            "Oops: 0000",
            "BUG: unable to handle",
            "task x blocked for more than 120 s",
        ):
            result = self._run("# vm: boot=cold\nmachine.succeed('true')\n", line)
            self.assertIn("the kernel reported a fault", result.error)

    def where_its_time_is_over(self) -> None:
        result = self._run("# vm: boot=cold timeout=1\nmachine.succeed('sleep 100')\n")
        self.assertIn("the scenario's 1 s are over", result.error)

    def only_there(self) -> None:
        result = self._run("# vm: boot=cold\nmachine.start()\nmachine.succeed('true')\n")
        self.assertEqual(result.error, "")
        self.assertFalse((self.folder / "run-1").exists(), "a success leaves nothing")


class HeaderIsChecked(unittest.TestCase):
    def _load(self, header: str) -> scenario.Scenario:
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(f"# vm: {header}\n")
            file.flush()
            return scenario.load(pathlib.Path(file.name))

    def each_word_counts(self) -> None:
        found = self._load("boot=cold memory=2048 cpus=1 disks=a:512M,b:2G timeout=9 binaries=none")
        wanted = Hardware(2048, 1, (("a", 512 << 20), ("b", 2 << 30)))
        self.assertEqual((found.cold, found.hardware, found.timeout), (True, wanted, 9))
        self.assertFalse(found.needs_binaries)

    def what_it_does_not_know_is_an_error(self) -> None:
        for header in (
            "boot=warm",
            "boot",
            "colour=red",
            "timeout=0",
            "timeout=1m",
            "boot=cold boot=cold",
            "boot=cold memory=1G",
            "boot=cold disks=spill",
            "boot=cold disks=:1G",
            "boot=cold disks=spill:1T",
            "memory=2048",
            "binaries=some",
        ):
            with self.subTest(header), self.assertRaises(HarnessError):
                self._load(header)

    def all_scenarios_have_a_right_one(self) -> None:
        self.assertIn("swap-on-off", scenario.load_all())

    def no_scenario_imports_the_harness(self) -> None:
        for path in [*scenario.FOLDER.glob("*.py"), scenario.PRELUDE]:
            with self.subTest(path.name):
                text = path.read_text(encoding="utf-8")
                self.assertIsNone(re.search(r"^\s*(from|import) harness", text, re.MULTILINE))


class CommandLine(unittest.TestCase):
    def _main(self, *words: str, results: list[scenario.Result] | None = None) -> tuple[int, str]:
        text = io.StringIO()
        fake = mock.patch.object(run, "_run_all", return_value=({}, results or []))
        with fake, contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            status = run.main(list(words))
        return status, text.getvalue()

    def an_unknown_scenario_is_an_error_that_lists_the_known(self) -> None:
        status, said = self._main("no-such")
        self.assertEqual(status, 2)
        self.assertIn("no scenario no-such", said)
        self.assertIn("harness-runs-commands", said)

    def the_closing_line_counts_and_the_status_says_whether_all_passed(self) -> None:
        good, bad = scenario.Result("a"), scenario.Result("b", error="no")
        for results, status, line in (
            ([good, good], 0, "2 passed, 0 failed"),
            ([good, bad], 1, "1 passed, 1 failed"),
        ):
            found, said = self._main(results=results)
            self.assertEqual((found, said.splitlines()[-1]), (status, line))


def load_tests(*_: object) -> unittest.TestSuite:
    """Called by unittest."""
    return sentences(
        MachineRunsCommands, ShellReadsReplies, ScenarioFails, HeaderIsChecked, CommandLine
    )
