#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Another program grows on a card of which a store holds nearly all the rest: sluiced has
the store give back what it needs, under load, and take it again when the program has ended.

    .ci/gpu_others.py BIN_DIR LIBRARY [FOLDER]

BIN_DIR has sluice and sluiced, LIBRARY is libcuda.so.1, FOLDER takes a spill of 4 GiB
(SLUICE_GPU_OTHERS_MIB says another size). Needs dbus-daemon, dbus-send, and a card on which
nobody else works.
"""

import ctypes
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
# In MiB: what the store has, what sluiced keeps free, by how much the program grows.
SIZE = int(os.environ.get("SLUICE_GPU_OTHERS_MIB", "4096"))
RESERVE = SIZE // 8
STEP = SIZE // 16
STEPS = 14
# What contexts of the programs take.
CONTEXTS = 2048
PAUSE = 1.0  # between two steps, seconds
OUT_OF_MEMORY = 2
BUS = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><listen>unix:path={0}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/>
<allow receive_sender="*"/><allow send_type="method_call"/></policy></busconfig>
"""


class Cuda:
    """The driver's library, as a program of its own uses it."""

    def __init__(self, library):
        self.library = ctypes.CDLL(library)
        self.must("cuInit", 0)
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.must("cuDeviceGet", ctypes.byref(device), 0)
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.must("cuCtxSetCurrent", self.context)

    def call(self, name, *words):
        return getattr(self.library, name)(*words)

    def must(self, name, *words):
        code = self.call(name, *words)
        if code:
            raise SystemExit(f"{name} answers {code}")

    def free(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def take(self, size):
        """Allocates and writes; how often there was no memory."""
        address, refused = ctypes.c_uint64(), 0
        while code := self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size)):
            if code != OUT_OF_MEMORY or refused > 1000:
                raise SystemExit(f"cuMemAlloc answers {code} after {refused} refusals")
            refused += 1
            time.sleep(0.01)
        self.must("cuMemsetD8_v2", address, ctypes.c_ubyte(1), ctypes.c_size_t(size))
        self.must("cuCtxSynchronize")
        return refused


def ballast(library, pipe):
    """Takes all of the card but what the store and the reserve need, and keeps it."""
    cuda = Cuda(library)
    taken = 0
    while cuda.free() > (SIZE + RESERVE + CONTEXTS + STEP) * MIB:
        cuda.take(STEP * MIB)
        taken += STEP
    pipe.send(taken)
    pipe.recv()


def grow(library, pipe):
    cuda = Cuda(library)
    for step in range(STEPS):
        begun = time.monotonic()
        refused = cuda.take(STEP * MIB)
        pipe.send((step + 1, (time.monotonic() - begun) * 1000, refused, cuda.free()))
        time.sleep(PAUSE)
    pipe.send(None)
    pipe.recv()


def start(function, *words):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=function, args=(*words, theirs))
    process.start()
    theirs.close()
    return process, ours


def main():
    programs, library = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    multiprocessing.set_start_method("spawn")
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as folder:
        at = pathlib.Path(folder)
        running = []
        try:
            watch(programs, library, at, running)
        except BaseException:
            for log in at.glob("*.log"):
                print(f"-- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
            raise
        finally:
            for process in reversed(running):
                process.terminate()


def watch(programs, library, at, running):
    environment = os.environ | {"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={at}/bus"}
    (at / "bus.conf").write_text(BUS.format(at / "bus"))
    (at / "sluice.toml").write_text(
        f'[swap]\nsize = "{SIZE}M"\n[tier]\nkind = "cuda"\nreserve = "{RESERVE}M"\n'
        f'[cuda]\nlibrary = "{library}"\n[spill]\npath = "{at}/spill"\n[control]\ndwell_s = 2\n'
    )

    def run(*words):
        return subprocess.run(words, check=True, env=environment, stdout=subprocess.PIPE).stdout

    def background(log, *words):
        with open(at / log, "wb") as file:
            process = subprocess.Popen(words, env=environment, stdout=file, stderr=file)
        running.append(process)
        return process

    def until(what, is_so, seconds=60):
        begun = time.monotonic()
        while not is_so():
            if time.monotonic() - begun > seconds:
                raise SystemExit(f"never: {what}")
            time.sleep(0.1)
        return time.monotonic() - begun

    def held():
        status = json.loads(run(programs / "sluice", "status", "--json", "--socket", at / "control"))
        fast = next(tier for tier in status["tiers"] if tier["kind"] == "fast")
        return fast["held_bytes"] // MIB, fast["target_bytes"] // MIB

    def why():
        return json.loads(run(programs / "sluice", "explain", "--json"))

    background("bus.log", "dbus-daemon", "--nofork", f"--config-file={at}/bus.conf")
    run(programs / "sluice", "spill", "create", "--size", f"{SIZE}M", at / "spill")
    keeper, keeps = start(ballast, library)
    running.append(keeper)
    print(f"another program has {keeps.recv()} MiB of the card", flush=True)
    background(
        "store.log", programs / "sluice", "serve", "--tier", "cuda", "--cuda-library", library,
        "--size", f"{SIZE}M", "--spill", at / "spill", "--socket", at / "nbd", "--control", at / "control",
    )  # fmt: skip
    until("the store listens", lambda: (at / "nbd").exists() and (at / "control").exists())
    background(
        "sluiced.log", programs / "sluiced", "--config", at / "sluice.toml", "--socket", at / "control",
        "--state-dir", at / "state",
    )  # fmt: skip
    until("sluiced answers", lambda: "org.sluice.Sluice1" in names(run))
    until("it is as configured", lambda: why()["rule"] == "configured")
    load = background(
        "load.log", programs / "sluice", "bench", f"unix:{at}/nbd", "--fill", "--connections", "4",
        "--depth", "8", "--write", "30", "--span", f"{SIZE - STEP}M", "--seconds", f"{40 + STEPS * 2}",
    )  # fmt: skip
    until("the store is full", lambda: held()[0] >= SIZE - STEP)
    time.sleep(3)
    grower, grows = start(grow, library)
    running.append(grower)
    print("step  took, ms  refused  free, MiB  store: held, target, MiB")
    refusals, rules = 0, set()
    while step := grows.recv():
        number, took, refused, free = step
        refusals += refused
        rules.add(why()["rule"])
        now, target = held()
        print(f"{number:4}  {took:8.1f}  {refused:7}  {free // MIB:9}  {now:6} {target:6}", flush=True)
    least = held()[0]
    grows.send(None)
    grower.join()
    back = until("the store has its memory again", lambda: held()[1] == SIZE)
    print(f"{STEPS * STEP} MiB in steps of {STEP}: {refusals} times no memory; the store held {least} MiB at the least")
    print(f"its target was whole again {back:.1f} s after the program ended")
    code = load.wait(timeout=300)
    print((at / "load.log").read_text()[-900:])
    assert code == 0, f"a page is wrong, or a request failed: {code}"
    assert refusals == 0 and "vram-pressure" in rules, (refusals, rules)
    assert least <= SIZE - (STEPS - 2) * STEP + RESERVE + CONTEXTS, least


def names(run):
    return run(
        "dbus-send", "--system", "--print-reply", "--dest=org.freedesktop.DBus",
        "/org/freedesktop/DBus", "org.freedesktop.DBus.ListNames",
    ).decode()  # fmt: skip


if __name__ == "__main__":
    main()
