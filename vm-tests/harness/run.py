# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line: chooses scenarios, prepares what they share, runs them, reports."""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time

from . import emulator, image, payload, scenario, snapshot
from .errors import HarnessError, ScenarioFailure
from .qemu import Hardware, Host


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="vm-tests/run", description="Runs Sluice's VM scenarios under QEMU."
    )
    parser.add_argument("--list", action="store_true", help="name the scenarios and stop")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="machines at a time (1)")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    parser.add_argument("--keep", action="store_true", help="keep logs and disks of all scenarios")
    parser.add_argument("--verbose", action="store_true", help="print each step as it happens")
    parser.add_argument(
        "--live", action="store_true", help="print what the scenarios print, as it happens"
    )
    parser.add_argument("--bin-dir", metavar="DIR", help="where the programs under test are")
    parser.add_argument(
        "--payload", metavar="DIR", help="unpack this tree at / instead of the default one"
    )
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help="which to run (all but soak/)")
    arguments = parser.parse_args(argv)
    if arguments.jobs < 1:
        parser.error(f"--jobs {arguments.jobs}: at least 1")
    if arguments.payload and arguments.bin_dir:
        parser.error("--payload is the whole tree: --bin-dir has no place in it")
    return arguments


def _choose(known: dict[str, scenario.Scenario], names: list[str]) -> list[scenario.Scenario]:
    unknown = [name for name in names if name not in known]
    if unknown:
        listing = "\n  ".join(known)
        raise HarnessError(f"no scenario {', '.join(unknown)}; there are:\n  {listing}")
    if names:
        return [known[name] for name in names]
    return [item for item in known.values() if not item.is_soak]


def _payload(arguments: argparse.Namespace, chosen: list[scenario.Scenario]) -> pathlib.Path:
    if arguments.payload:
        folder = pathlib.Path(arguments.payload)
        if not folder.is_dir():
            raise HarnessError(f"--payload {folder}: no such folder")
        return payload.pack(folder)
    programs = payload.find_programs(arguments.bin_dir)
    needy = [s.name for s in chosen if s.needs_binaries]
    missing = [name for name in payload.PROGRAMS if name not in programs]
    if needy and missing:
        raise HarnessError(
            f"{needy[0]} needs the program {missing[0]}: run `cargo build` first, or give --bin-dir"
        )
    needy = [s.name for s in chosen if s.needs_policies]
    if needy and not payload.has_policies():
        raise HarnessError(f"{needy[0]} needs the kernel modules and policies: run `make kernel`")
    if needy and (built_for := payload.modules_release()) != image.kernel_version():
        raise HarnessError(
            f"{needy[0]} boots kernel {image.kernel_version()}, and the modules in {payload.KERNEL} "
            f"are for {built_for}: give SLUICE_VM_MODULES modules of that kernel, "
            f"or SLUICE_VM_KERNEL={built_for}"
        )
    with tempfile.TemporaryDirectory(prefix="sluice-vm-") as place:
        tree = pathlib.Path(place) / "tree"
        payload.assemble(programs, tree)
        return payload.pack(tree)


def _host() -> Host:
    host = Host(emulator.get(), image.get(), "kvm")
    accel = snapshot.choose_accel(host, os.environ.get("SLUICE_VM_ACCEL") or None)
    return dataclasses.replace(host, accel=accel)


def _run_all(
    arguments: argparse.Namespace, chosen: list[scenario.Scenario]
) -> tuple[dict[str, object], list[scenario.Result]]:
    begin = time.monotonic()
    host = _host()
    tar = _payload(arguments, chosen)
    state = None
    if not all(s.cold for s in chosen):
        state = snapshot.with_payload(host, Hardware(), tar)
    facts: dict[str, object] = {
        "accel": host.accel,
        "kernel": image.kernel_version(),
        "qemu": host.emulator.version,
        "preparation_seconds": round(time.monotonic() - begin, 1),
    }
    print(
        f"{host.emulator.version}, {host.accel}, kernel {image.kernel_version()}, "
        f"ready after {facts['preparation_seconds']} s",
        flush=True,
    )
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-vm-"))
    printing = threading.Lock()

    def one(item: scenario.Scenario) -> scenario.Result:
        def narrate(line: str) -> None:
            if arguments.verbose:
                print(f"  {item.name} {line}", flush=True)

        def say(line: str) -> None:
            if arguments.live:
                print(line, flush=True)

        place = folder / item.name.replace("/", "-")
        result = scenario.run(item, host, state, tar, place, arguments.keep, narrate, say)
        with printing:
            _show(result)
        return result

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(one, chosen))
    if not any(folder.iterdir()):
        shutil.rmtree(folder)
    return facts, results


def _show(result: scenario.Result) -> None:
    print(f"{result.name:40} {result.seconds:6.1f} s  {'ok' if result.ok else 'FAILED'}")
    if result.error:
        print(result.error)
        print(scenario.tail(result.log))
    if result.log:
        print(f"logs of {result.name}: {result.log}")
    sys.stdout.flush()


def _sum_up(results: list[scenario.Result]) -> int:
    """Ends with the failures once more, since a long log is read from its end; gives their number."""
    failed = [result for result in results if not result.ok]
    for result in failed:
        print(f"{result.name} FAILED: {result.error}")
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return len(failed)


def main(argv: list[str]) -> int:
    """Runs the command line; gives the exit status: 0 all passed, 1 some failed, 2 no run."""
    arguments = _arguments(argv)
    try:
        known = scenario.load_all()
        if arguments.list:
            print("\n".join(known))
            return 0
        chosen = _choose(known, arguments.scenario)
        facts, results = _run_all(arguments, chosen)
    except (HarnessError, ScenarioFailure) as error:
        print(f"vm-tests: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        entries = [{"ok": r.ok, **dataclasses.asdict(r)} for r in results]
        text = json.dumps({**facts, "scenarios": entries}, indent=2)
        pathlib.Path(arguments.json).write_text(text + "\n", encoding="utf-8")
    return 1 if _sum_up(results) else 0
