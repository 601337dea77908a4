# SPDX-License-Identifier: MIT OR Apache-2.0
"""The examples as whole NixOS machines, and every output of the flake, evaluated with a
checkout of nixpkgs (NIXPKGS). Nothing is built."""

import json
import os
import pathlib
import unittest

import rendering
import test_module
import tools

HERE = pathlib.Path(__file__).resolve().parent


def evaluate(attribute: str) -> object:
    """An attribute of full.nix."""
    nixpkgs = pathlib.Path(os.environ["NIXPKGS"]).absolute()
    words = ["--store", "dummy://", "--eval", "--strict", "--json", "--arg", "nixpkgs", str(nixpkgs)]
    done = tools.nix("nix-instantiate", *words, str(HERE / "full.nix"), "-A", attribute)
    if done.returncode != 0:
        raise AssertionError(f"{attribute} does not evaluate:\n{done.stderr.strip()[-4000:]}")
    return json.loads(done.stdout)


def names(kind: str) -> list[str]:
    return sorted(path.stem for path in (HERE / kind).glob("*.nix"))


class WholeSystem(unittest.TestCase):
    maxDiff = None

    def test_each_example_is_a_machine_with_the_same_files(self) -> None:
        for name in names("examples"):
            with self.subTest(name):
                example = evaluate(f"examples.{name}")
                self.assertEqual((example["failed"], example["warnings"]), ([], []))
                self.assertRegex(example["toplevel"], r"^/nix/store/.*-nixos-system-.*\.drv$")
                files = rendering.tree(example, test_module.packaged())
                expected = rendering.read(HERE / "expected" / name)
                self.assertEqual(files, expected)

    def test_a_specialisation_can_leave_it_out(self) -> None:
        machine = evaluate("specialisation")
        self.assertEqual((machine["usual"], machine["training"]), (["multi-user.target"], []))

    def test_each_bad_configuration_is_refused(self) -> None:
        for name in names("refused"):
            with self.subTest(name):
                case = evaluate(f"refused.{name}")
                said = [test_module.one_line(message) for message in case["failed"]]
                self.assertEqual(len(said), 1, said)
                self.assertIn(test_module.says("refused", name), said[0])


class Flake(unittest.TestCase):
    def test_each_output_evaluates(self) -> None:
        for kind in ("packages", "devShells", "apps", "formatter", "overlay"):
            with self.subTest(kind):
                self.assertTrue(evaluate(f"flake.{kind}"))

    def test_the_patched_driver_differs_in_its_modules_alone(self) -> None:
        driver = evaluate("flake.driver")
        self.assertEqual(driver["userSpace"][0], driver["userSpace"][1])
        self.assertNotEqual(driver["modules"][0], driver["modules"][1])

    def test_each_check_evaluates(self) -> None:
        checks = evaluate("flake.checkNames")
        for name in checks:
            with self.subTest(name):
                self.assertRegex(evaluate(f"flake.checks.{name}"), r"\.drv$")
        scenarios = [path.stem for path in (tools.TREE / "vm-tests/scenarios").glob("*.py")]
        tests = [name for name in checks if name.startswith("vm-")]
        # All but the harness's own and those that need Debian's paths.
        left_out = [name for name in scenarios if f"vm-{name}" not in tests]
        debian_only = sorted(name for name in left_out if not name.startswith("harness-"))
        self.assertEqual(debian_only, ["made-by-install", "reload-upgrade"])
