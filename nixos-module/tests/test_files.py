# SPDX-License-Identifier: MIT OR Apache-2.0
"""The Nix files as files, and the lock."""

import json
import pathlib
import re
import shutil
import tempfile
import unittest

import tools

FLAKES = ["--extra-experimental-features", "nix-command flakes"]


class NixFiles(unittest.TestCase):
    def test_each_parses(self) -> None:
        paths = [str(path) for path in tools.files(".nix")]
        self.assertGreater(len(paths), 10)
        done = tools.nix("nix-instantiate", "--store", "dummy://", "--parse", *paths)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_each_is_formatted(self) -> None:
        self.assertTrue(shutil.which("nixfmt"), "cargo install --locked nixfmt_rs")
        done = tools.run("nixfmt", "--check", *map(str, tools.files(".nix")))
        self.assertEqual(done.returncode, 0, f"run nixfmt on them:\n{done.stdout}{done.stderr}")

    def test_none_has_names_that_nothing_uses(self) -> None:
        self.assertTrue(shutil.which("deadnix"), "cargo install --locked deadnix")
        done = tools.run("deadnix", "--fail", *map(str, tools.files(".nix")))
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_each_says_its_license(self) -> None:
        for path in tools.files(".nix"):
            first = path.read_text(encoding="utf-8").splitlines()[0]
            self.assertRegex(first, "^# SPDX-License-Identifier: ", path)


class Packaging(unittest.TestCase):
    def test_each_packaged_file_is_installed_by_hand_as_by_nix(self) -> None:
        module = tools.TREE / "nixos-module"
        recipes = {
            "make install": (tools.TREE / "Makefile").read_text(encoding="utf-8"),
            "the package": (module / "packages/sluice.nix").read_text(encoding="utf-8"),
        }
        # Groups are an option on NixOS.
        by_make_alone = {"sluice.sysusers"}
        for path in [*(module / "dbus").iterdir(), *(module / "polkit").iterdir()]:
            for name, text in recipes.items():
                if name == "make install" or path.name not in by_make_alone:
                    self.assertIn(f"{path.parent.name}/{path.name}", text, name)


class Lock(unittest.TestCase):
    def test_it_is_of_the_inputs_that_the_flake_names(self) -> None:
        # Without a network it fails where an input has no entry or another one.
        words = ["--offline", "--no-update-lock-file", "--no-write-lock-file", "--json"]
        with tempfile.TemporaryDirectory(prefix="sluice-flake-") as folder:
            # Alone: the flake is copied to a store as a whole, target/ included.
            flake = pathlib.Path(folder) / "flake"
            flake.mkdir()
            for name in ("flake.nix", "flake.lock"):
                shutil.copy(tools.TREE / name, flake)
            store = ["--store", f"{folder}/store"]
            done = tools.nix("nix", *FLAKES, *store, "flake", "metadata", *words, f"path:{flake}")
            # What nix makes cannot be removed as it is.
            tools.run("chmod", "-R", "u+w", folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["description"], "Sluice: fast swap in idle GPU memory")

    def test_its_one_input_is_pinned_whole(self) -> None:
        lock = json.loads((tools.TREE / "flake.lock").read_text(encoding="utf-8"))
        self.assertEqual(set(lock["nodes"]), {"nixpkgs", "root"})
        pin = lock["nodes"]["nixpkgs"]["locked"]
        self.assertRegex(pin["rev"], "^[0-9a-f]{40}$")
        self.assertRegex(pin["narHash"], "^sha256-[A-Za-z0-9+/]{43}=$")
        flake = (tools.TREE / "flake.nix").read_text(encoding="utf-8")
        original = lock["nodes"]["nixpkgs"]["original"]
        self.assertIn(f"github:{original['owner']}/{original['repo']}/{original['ref']}", flake)
        self.assertLessEqual(len(flake.splitlines()), 120)
        self.assertEqual(len(re.findall(r"inputs\.\w+", flake)), 1)
