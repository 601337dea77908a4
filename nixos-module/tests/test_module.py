# SPDX-License-Identifier: MIT OR Apache-2.0
"""The module, evaluated: what it renders, what it refuses, what it documents."""

import json
import os
import pathlib
import re
import shutil
import tempfile
import tomllib
import unittest

import rendering
import tools

HERE = pathlib.Path(__file__).resolve().parent
EXPECTED = HERE / "expected"
UNITS = HERE.parent / "units"
PAGE = tools.TREE / "docs/reference/nixos-options.md"
KEYS = tools.TREE / "docs/reference/configuration.md"
BLESS = bool(os.environ.get("BLESS"))
# systemd's measure of what a unit may still do, times ten. The store makes swap of a
# device that it attaches, in the namespace of mounts that all see; the rest need less.
# A unit that is not listed has no sandbox, which its file explains.
UNHARDENED = 98
EXPOSURE = {
    "sluice-store.service": 53,
    "sluiced.service": 20,
    "sluice-spill.service": 16,
    "sluice-policy.service": 60,
    "sluice-reserve@.service": 20,
}
# What Debian 12's systemd does not know yet, and says that it ignores.
NEWER = re.compile(r"Unknown key '(SurviveFinalKillSignal)' in section \[Unit\], ignoring")
# What a file must have for the store.
LEAST = '[swap]\nsize = "8G"\n[tier]\nkind = "ram"\n'
# Keys of the configuration file without an option, and why.
SETTINGS_ONLY: dict[str, str] = {}


def packaged() -> set[str]:
    return {path.name for path in UNITS.iterdir()}


def examples() -> dict[str, dict[str, object]]:
    return tools.evaluation()["examples"]


def ours(unit: str) -> bool:
    return unit.startswith("sluice")


def says(kind: str, name: str) -> str:
    """What a case must be answered with, from its own second line."""
    line = (HERE / kind / f"{name}.nix").read_text(encoding="utf-8").splitlines()[1]
    return line.removeprefix("# says: ")


def one_line(text: str) -> str:
    return " ".join(text.split())


class Examples(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls) -> None:
        if BLESS:
            shutil.rmtree(EXPECTED, ignore_errors=True)
            for name, example in examples().items():
                rendering.write(rendering.tree(example, packaged()), EXPECTED / name)

    def test_none_is_refused_or_warned_of(self) -> None:
        for name, example in examples().items():
            with self.subTest(name):
                self.assertEqual(example["failed"], [])
                self.assertEqual(example["warnings"], [])

    def test_each_renders_what_it_did(self) -> None:
        rendered = {name: rendering.tree(e, packaged()) for name, e in examples().items()}
        known = sorted(path.name for path in EXPECTED.iterdir())
        self.assertEqual(known, sorted(rendered), "expected/: run BLESS=1 make nix")
        for name, files in rendered.items():
            with self.subTest(name):
                message = "if it is meant: BLESS=1 make nix"
                self.assertEqual(rendering.read(EXPECTED / name), files, message)

    def test_both_programs_take_each_file(self) -> None:
        for path in EXPECTED.glob("*/etc/sluice/sluice.toml"):
            with self.subTest(path.parts[-4]), tempfile.TemporaryDirectory() as folder:
                text = path.read_text(encoding="utf-8")
                if "[swap]" not in text:
                    # The file of a machine with policies alone, beside the least of a store.
                    text += LEAST
                    path = pathlib.Path(folder) / "sluice.toml"
                    path.write_text(text, encoding="utf-8")
                done = tools.sluice("config", "check", str(path))
                self.assertEqual(done.returncode, 0, done.stderr)
                done = tools.program("sluiced", "--check-config", "--config", str(path))
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_each_file_says_what_was_evaluated(self) -> None:
        for name, example in examples().items():
            path = EXPECTED / name / "etc/sluice/sluice.toml"
            self.assertEqual(path.exists(), bool(example["settings"]), name)
            if path.exists():
                self.assertEqual(tomllib.loads(path.read_text(encoding="utf-8")), example["settings"])

    def test_the_build_checks_the_file(self) -> None:
        for name, example in examples().items():
            script = example["etc"]["sluice/sluice.toml"]
            # Without a store its own loader checks the policies.
            self.assertEqual("/usr/bin/sluice config check" in script, "swap" in example["settings"], name)

    def test_the_store_is_left_alone_by_a_switch(self) -> None:
        for name, example in examples().items():
            for unit, rendered in example["units"].items():
                # A policy is loaded again, the daemon that decides is started again.
                if ours(unit) and not unit.startswith(("sluice-policy.", "sluiced.")):
                    self.assertIn("X-RestartIfChanged=false", rendered["text"], (name, unit))

    def test_a_switch_has_the_daemon_that_decides_follow_it(self) -> None:
        # Another program is started; another file is read by the one that runs.
        for name, example in examples().items():
            if unit := example["units"].get("sluiced.service"):
                self.assertNotIn("X-RestartIfChanged=false", unit["text"], name)
                self.assertRegex(unit["text"], r"(?m)^X-Reload-Triggers=.*sluice\.toml", name)

    def test_the_bus_and_polkit_find_the_package_s_files(self) -> None:
        for name, example in examples().items():
            runs = "sluiced.service" in example["units"]
            self.assertEqual(runs, "swap" in example["settings"], name)
            packages = example["packages"]
            found = ["sluice" in packages["bus"], example["polkit"], "sluice" in example["groups"]]
            self.assertEqual(found, [runs] * 3, name)
            # polkit looks into the system's path.
            self.assertIn("sluice", packages["path"], name)

    def test_each_unit_is_installed_as_its_file_says(self) -> None:
        # NixOS does not read these sections; the module does, and the packages are the same.
        units = {**examples()["no-gpu"]["units"], **examples()["policies"]["units"]}
        for path in UNITS.glob("*.service"):
            text = path.read_text(encoding="utf-8")
            for kind, key in (("WantedBy", "wantedBy"), ("RequiredBy", "requiredBy")):
                words = " ".join(re.findall(f"(?m)^{kind}=(.*)$", text)).split()
                installed = units.get(path.name, {}).get(key, [])
                self.assertEqual(installed, words, path.name)

    def test_the_patched_driver_is_the_given_one_with_other_modules(self) -> None:
        driver = examples()["patched-driver"]["driver"]
        self.assertTrue(driver["isSame"], "user space")
        self.assertLessEqual({"coccinelle", "python3", "pahole"}, set(driver["tools"]))
        before, command = driver["postPatch"].split("\n", 1)
        self.assertEqual(before, "true")
        self.assertRegex(command, r"/kernel-module/apply\.py kernel-open 595\.45\.04\n")
        self.assertIn("sluice_uvm_connect", driver["postBuild"])
        others = [name for name, example in examples().items() if example["driver"]]
        self.assertEqual(others, ["patched-driver"])

    def test_a_stock_driver_gets_the_parameter_of_the_policy(self) -> None:
        said = {name: example["modprobe"] for name, example in examples().items()}
        with_parameter = [name for name, text in said.items() if "uvm_perf" in text]
        self.assertEqual(with_parameter, ["stock-driver"])
        # What `sluice policy show` looks for, by the table that both read.
        self.assertIn("options nvidia-uvm uvm_perf_prefetch_threshold=25", said["stock-driver"])
        self.assertIn("softdep nvidia-uvm pre: sluice_gpu", said["patched-driver"])

    def test_nothing_takes_the_store_with_it(self) -> None:
        # A unit that the store requires stops it when it is stopped.
        for name, example in examples().items():
            for unit, rendered in example["units"].items():
                self.assertNotIn("sluice-store.service", rendered["requiredBy"], (name, unit))
                if ours(unit):
                    self.assertNotRegex(rendered["text"], r"(?m)^(Requires|BindsTo|PartOf)=", (name, unit))

    def test_a_tenant_s_service_waits_for_its_floor(self) -> None:
        units = examples()["llm-workstation"]["units"]
        for key in ("Requires", "After", "Upholds"):
            self.assertRegex(units["ollama.service"]["text"], f"(?m)^{key}=sluice-reserve@ollama.service$")
        self.assertIn("sluice-reserve@.service", packaged())


class Units(unittest.TestCase):
    """The files of the packages with what the module adds, by systemd's own tools."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="sluice-units-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        # Its own units stand for those that ours name.
        shutil.copytree("/usr/lib/systemd/system", self.root / "usr/lib/systemd/system", symlinks=True)
        for path in UNITS.iterdir():
            shutil.copy(path, self.root / "usr/lib/systemd/system")
        programs = [*re.findall(r"/usr/bin/[\w-]+", "".join(p.read_text() for p in UNITS.iterdir()))]
        (self.root / "usr/bin").mkdir(parents=True)
        for program in {*programs, *(f"/usr/bin/{p}" for p in ("sluice", "mkdir", "kill", "systemctl", "ollama"))}:
            path = self.root / program.lstrip("/")
            path.touch(mode=0o755)

    def install(self, name: str) -> list[str]:
        """Puts an example's files there; gives the names of its units."""
        rendering.write(rendering.tree(examples()[name], packaged()), self.root)
        # Templates are the packages' alone, as each instance is.
        return sorted([*examples()[name]["units"], *(unit for unit in packaged() if "@." in unit)])

    def test_systemd_finds_nothing_wrong(self) -> None:
        for name in examples():
            with self.subTest(name):
                shutil.rmtree(self.root / "etc", ignore_errors=True)
                units = self.install(name)
                words = ["--man=no", f"--root={self.root}", *units]
                done = tools.run("systemd-analyze", "verify", *words)
                lines = [line for line in done.stderr.splitlines() if "sluice" in line]
                ours = [line for line in lines if not NEWER.search(line)]
                self.assertEqual((done.returncode, ours), (0, []), done.stderr)

    def test_each_program_is_found_on_nixos(self) -> None:
        # The packages replace /usr/bin and kill; systemd's own programs it finds itself.
        for path in UNITS.iterdir():
            for command in re.findall(r"(?m)^Exec\w+=[-@:+!|]*(\S+)", path.read_text(encoding="utf-8")):
                found = command.startswith("/usr/bin/sluice") or command in ("kill", "systemctl")
                self.assertTrue(found, f"{path.name}: {command}")

    def test_no_unit_may_do_more_than_it_did(self) -> None:
        found: set[str] = set()
        for name in examples():
            shutil.rmtree(self.root / "etc", ignore_errors=True)
            for unit in self.install(name):
                limit = EXPOSURE.get(unit, UNHARDENED)
                words = ["--offline=true", f"--root={self.root}", f"--threshold={limit}"]
                done = tools.run("systemd-analyze", "security", *words, unit)
                said = done.stdout.strip().splitlines()[-1:] or done.stderr
                self.assertEqual(done.returncode, 0, f"{unit}, at most {limit / 10}: {said}")
                found.add(unit)
        self.assertEqual(set(EXPOSURE) - found, set(), "an example for each unit")


class Refusals(unittest.TestCase):
    def test_each_bad_configuration_is_refused_for_its_own_reason(self) -> None:
        for name, case in tools.evaluation()["refused"].items():
            with self.subTest(name):
                self.assertEqual(len(case["failed"]), 1, case["failed"])
                self.assertIn(says("refused", name), one_line(case["failed"][0]))

    def test_each_assertion_has_a_configuration_that_it_refuses(self) -> None:
        cases = tools.evaluation()["refused"].values()
        # All have the service enabled, so that their lists of assertions are the same.
        self.assertEqual(len({case["assertions"] for case in cases}), 1)
        total = next(iter(cases))["assertions"]
        fired = {place for case in cases for place in case["places"]}
        self.assertEqual(fired, set(range(total)))

    def test_each_warning_is_given_where_it_is_meant(self) -> None:
        cases = tools.evaluation()["warned"]
        for name, case in cases.items():
            with self.subTest(name):
                self.assertEqual(case["failed"], [])
                self.assertEqual(len(case["warnings"]), 1, case["warnings"])
                self.assertIn(says("warned", name), one_line(case["warnings"][0]))
        text = (HERE.parent / "assertions.nix").read_text(encoding="utf-8")
        self.assertEqual(text[text.index("warnings =") :].count("lib.optional ("), len(cases))

    def test_values_of_another_type_are_refused(self) -> None:
        taken = [case["why"] for case in tools.evaluation()["wrongTypes"] if case["taken"]]
        self.assertEqual(taken, [])


class Options(unittest.TestCase):
    maxDiff = None

    def options(self) -> dict[str, dict[str, object]]:
        return {item["name"].removeprefix("services.sluice."): item for item in tools.evaluation()["options"]}

    def test_each_has_a_description_a_default_and_an_example(self) -> None:
        for name, option in self.options().items():
            with self.subTest(name):
                self.assertRegex(option["description"] or "", r"\.\s*$")
                # What is made by name has parts that only its maker can say.
                if ".<name>." not in name:
                    self.assertIsNotNone(option["default"], "no default")
                self.assertIsNotNone(option["example"], "no example")

    def test_the_page_shows_them(self) -> None:
        head, mark, found = PAGE.read_text(encoding="utf-8").partition(rendering.MARK)
        self.assertTrue(mark, f"{PAGE} has no mark")
        page = rendering.options_page(tools.evaluation()["options"])
        if BLESS:
            PAGE.write_text(head + mark + page, encoding="utf-8")
            found = page
        self.assertEqual(found, page, "run BLESS=1 make nix")

    def test_each_key_of_the_file_has_its_option(self) -> None:
        options = set(self.options())
        missing = {
            key for key in keys() if camel(key) not in options and key not in SETTINGS_ONLY
        }
        self.assertEqual(missing, set(), "give them options in nixos-module/options.nix")

    def test_each_type_takes_what_the_program_takes(self) -> None:
        # The program lists what is valid when it is given something that is not.
        compared = 0
        for key in sorted(keys() - set(SETTINGS_ONLY)):
            kind = self.options()[camel(key)]["type"]
            if "one of" in kind:
                said = answer(key, '"qqqq"').splitlines()[0]
                words = set(re.findall(r'"(\w+)"', said.partition("write one of")[2]))
                taken = {word for word in words if "not built" not in answer(key, f'"{word}"')}
                self.assertEqual(set(re.findall(r'"(\w+)"', kind)), taken, key)
            elif "integer between" in kind:
                numbers = re.search(r"from (-?\d+) to (\d+)", answer(key, "99999999999"))
                self.assertEqual(re.search(r"between (-?\d+) and (\d+)", kind).groups(), numbers.groups())
            else:
                continue
            compared += 1
        self.assertGreaterEqual(compared, 8)

    def test_the_defaults_are_the_program_s(self) -> None:
        rendered = next(
            example["settings"] for name, example in examples().items() if name == "no-gpu"
        )
        # Of the example only what it says itself; the rest are the module's defaults.
        for section, key in (("tier", "size"), ("spill", "path")):
            rendered = {**rendered, section: {k: v for k, v in rendered[section].items() if k != key}}
        rendered = {section: values for section, values in rendered.items() if values}
        rendered = {**rendered, "swap": {**rendered["swap"], "size": "8G"}}
        with tempfile.TemporaryDirectory() as folder:
            shown = []
            for name, text in (("least", LEAST), ("module", rendering.toml(rendered))):
                path = pathlib.Path(folder) / f"{name}.toml"
                path.write_text(text, encoding="utf-8")
                done = tools.sluice("config", "show", "--json", str(path))
                self.assertEqual(done.returncode, 0, done.stderr)
                shown.append(json.loads(done.stdout))
        self.assertEqual(shown[1], shown[0])


def keys() -> set[str]:
    """The keys of the configuration file, by the page that the program's tests hold right."""
    found = set()
    section = ""
    for line in KEYS.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"## `\[(\w+)\]`", line):
            section = heading[1]
        elif line.startswith("## "):
            section = ""
        elif section and (row := re.match(r"\| `(\w+)` \|", line)):
            found.add(f"{section}.{row[1]}")
    return found


def answer(key: str, value: str) -> str:
    """What the program says of a file in which that key has that value."""
    section, name = key.split(".")
    settings = {"swap": {"size": '"8G"'}, "tier": {"kind": '"ram"'}}
    settings.setdefault(section, {})[name] = value
    lines = [f"[{s}]\n" + "".join(f"{k} = {v}\n" for k, v in keys.items()) for s, keys in settings.items()]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write("".join(lines))
        file.flush()
        return tools.sluice("config", "check", file.name).stderr


def camel(key: str) -> str:
    """The option of a key."""
    return re.sub(r"_(\w)", lambda match: match[1].upper(), key)
