# SPDX-License-Identifier: GPL-2.0-only
"""Patching in place: what is refused leaves the source as it was."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "vm-tests"))

from harness.testing import sentences


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs the program."""
    command = [sys.executable, "-B", str(HERE / "apply.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Applying(unittest.TestCase):
    """In an unpacked source, or not at all."""

    def a_release_that_is_not_known_changes_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            done = run(folder, "1.2")
            self.assertEqual((done.returncode, list(pathlib.Path(folder).iterdir())), (1, []))
            self.assertIn("driver.lock does not know version 1.2", done.stderr)

    def a_folder_that_is_no_source_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            done = run(folder, "550.163.01")
            self.assertEqual((done.returncode, list(pathlib.Path(folder).iterdir())), (1, []))
            self.assertIn(f"{folder}/nvidia-uvm", done.stderr)

    def another_number_of_words_is_wrong_usage(self) -> None:
        self.assertEqual(run("/nowhere").returncode, 2)


def load_tests(*_: object) -> unittest.TestSuite:
    """Names the tests to unittest, which finds only names that begin with `test`."""
    return sentences(Applying)
