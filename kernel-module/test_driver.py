# SPDX-License-Identifier: GPL-2.0-only
"""The check of the semantic patches: on sources of ours, with names that the rules look for."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import driver
from harness.errors import HarnessError
from harness.testing import sentences

PLAIN = """\
#include "uvm_global.h"

static int uvm_init(void)
{
    if (begin())
        return -1;
    return 0;
}

static void uvm_exit(void)
{
    uvm_global_exit();
}
"""
EXPECTED = {"uvm.c": {"(file)": 1, "uvm_exit": 1, "uvm_init": 1}}


def found(text: str) -> driver.Sites:
    """What the rules of the module's begin and end do to a source."""
    return {"uvm.c": driver.sites(text, driver.apply("module", text))}


class TheCheckOfRules(unittest.TestCase):
    """A rule that matches nothing or too much is told."""

    def a_source_as_expected_has_no_differences(self) -> None:
        self.assertEqual(driver.differences(EXPECTED, found(PLAIN)), [])
        after = driver.apply("module", PLAIN)
        self.assertIn("sluice_uvm_connect();\n    return 0;", after)
        self.assertIn("uvm_global_exit();\n    sluice_uvm_disconnect();", after)

    def a_rule_that_matches_nothing_is_told(self) -> None:
        renamed = PLAIN.replace("uvm_exit(void)", "uvm_end(void)")
        self.assertEqual(
            driver.differences(EXPECTED, found(renamed)), ["uvm.c, uvm_exit: 0 lines, not 1"]
        )

    def a_rule_that_matches_too_much_is_told(self) -> None:
        twice = PLAIN.replace("return -1;", "return 0;")
        (said,) = driver.differences(EXPECTED, found(twice))
        self.assertRegex(said, r"^uvm\.c, uvm_init: [2-9] lines, not 1$")

    def a_match_in_another_function_is_told(self) -> None:
        before = "void a(void)\n{\n}\n\nvoid b(void)\n{\n}\n"
        in_a = driver.sites(before, before.replace("{\n}\n\n", "{\n\tx();\n}\n\n"))
        in_b = driver.sites(before, before[:-2] + "\tx();\n}\n")
        self.assertEqual((in_a, in_b), ({"a": 1}, {"b": 1}))
        self.assertEqual(
            driver.differences({"f.c": in_a}, {"f.c": in_b}),
            ["f.c, a: 0 lines, not 1", "f.c, b: 1 lines, not 0"],
        )

    def a_removed_line_is_told(self) -> None:
        before = "void a(void)\n{\n\tx();\n}\n"
        self.assertEqual(driver.sites(before, before.replace("\tx();\n", "")), {"a": 1})

    def a_line_outside_of_functions_is_counted_there(self) -> None:
        before = "void a(void)\n{\n}\n"
        self.assertEqual(driver.sites(before, before + "int x;\n"), {"(file)": 1})

    def a_version_that_is_not_known_is_refused(self) -> None:
        with self.assertRaisesRegex(HarnessError, "does not know version 1.2; it knows"):
            driver.check(pathlib.Path("/nowhere"), "1.2", driver.load())

    def a_lock_whose_sites_are_missing_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "driver.lock"
            path.write_text('{"sites": {}, "versions": {"1.2": {"sites": "a"}}}')
            with self.assertRaisesRegex(HarnessError, "1.2 names sites 'a'"):
                driver.load(path)

    def every_rule_file_has_a_file_to_look_at(self) -> None:
        rules = {path.stem for path in driver.RULES.glob("*.cocci")}
        self.assertEqual(rules, set(driver.FILES))

    def every_known_version_expects_something_of_every_rule(self) -> None:
        lock = driver.load()
        for version, entry in lock["versions"].items():
            for rule, name in driver.FILES.items():
                self.assertTrue(lock["sites"][entry["sites"]].get(name), (version, rule))


def load_tests(*_: object) -> unittest.TestSuite:
    """Names the tests to unittest, which finds only names that begin with `test`."""
    return sentences(TheCheckOfRules)
