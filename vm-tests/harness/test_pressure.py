# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pressure program must see a wrong page; only the host can make one wrong."""

import json
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest
from collections.abc import Callable
from typing import Any

from .payload import PRESSURE
from .testing import sentences

PAGE = 4096
MIB = 1 << 20


class PressureSeesWrongPages(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.program = self.folder / "pressure"
        subprocess.run(["cc", "-O1", "-pthread", "-o", self.program, PRESSURE / "pressure.c"], check=True)

    def _run_program(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *arguments], capture_output=True, text=True, check=False
        )

    def _after_damage(self, change: Callable[[Any, int], None]) -> tuple[int, dict[str, int]]:
        """Holds 4 MiB, lets change(memory file, start address) damage it, gives the verdict."""
        ready = self.folder / "ready"
        command: list[str | pathlib.Path] = [
            self.program,
            "--bytes",
            "4M",
            "--hold",
            "--ready",
            ready,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as held:
            while not ready.exists():
                self.assertIsNone(held.poll(), "it ended before it was full")
                time.sleep(0.01)
            maps = pathlib.Path(f"/proc/{held.pid}/maps").read_text(encoding="ascii")
            starts = []
            for line in maps.splitlines():
                first, last = (int(x, 16) for x in line.split()[0].split("-"))
                if last - first == 4 * MIB:
                    starts.append(first)
            self.assertEqual(len(starts), 1, maps)
            with open(f"/proc/{held.pid}/mem", "r+b", buffering=0) as memory:
                change(memory, starts[0])
            held.send_signal(signal.SIGUSR1)
            output, _ = held.communicate()
        return held.returncode, json.loads(output)

    def undamaged_pages_are_right(self) -> None:
        status, report = self._after_damage(lambda memory, start: None)
        self.assertEqual((status, report["wrong"], report["verified"]), (0, 0, 1024))

    def one_flipped_bit_is_seen(self) -> None:
        def flip(memory: Any, start: int) -> None:
            memory.seek(start + 7 * PAGE + 4095)
            byte = memory.read(1)[0]
            memory.seek(start + 7 * PAGE + 4095)
            memory.write(bytes([byte ^ 1]))

        status, report = self._after_damage(flip)
        self.assertEqual((status, report["wrong"], report["wrong_zero"]), (1, 1, 0))

    def two_swapped_pages_are_seen(self) -> None:
        def exchange(memory: Any, start: int) -> None:
            memory.seek(start)
            first, second = memory.read(PAGE), memory.read(PAGE)
            memory.seek(start)
            memory.write(second + first)

        status, report = self._after_damage(exchange)
        self.assertEqual((status, report["wrong"]), (1, 2))

    def a_lost_page_is_told_from_a_damaged_one(self) -> None:
        def clear(memory: Any, start: int) -> None:
            memory.seek(start + 1023 * PAGE)
            memory.write(bytes(PAGE))

        status, report = self._after_damage(clear)
        self.assertEqual((status, report["wrong"], report["wrong_zero"]), (1, 1, 1))

    def values_that_do_not_parse_are_errors(self) -> None:
        for words in (
            "--bytes 5 --hold",
            "--bytes 4M",
            "--bytes M --hold",
            "--bytes 4MB --hold",
            "--bytes -4M --hold",
            "--bytes 4M --passes 0",
            "--bytes 4M --passes 1x",
            "--bytes 4M --passes 1 --hold",
            "--bytes 4M --hold --write 101",
            "--bytes 4M --hold more",
            "--bytes 99999999999G --hold",
            "--bytes 4K --hold --tasks 2",
        ):
            with self.subTest(words):
                done = self._run_program(*words.split())
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn("usage:", done.stderr)


def load_tests(*_: object) -> unittest.TestSuite:
    """Called by unittest."""
    return sentences(PressureSeesWrongPages)
