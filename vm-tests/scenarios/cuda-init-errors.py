# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# A card that cannot be used is refused before anything is attached, each time with what
# was wrong and the next step; when it can be used again the same configuration serves.
CONFIGURATION = f"""
[swap]
size = "128M"
[tier]
kind = "cuda"
[cuda]
library = "%s"
devices = ["%s"]
"""


def refused(says, *words, library=FAKE_DRIVER, device="0"):
    fake_cards("device-bytes=512M", *words)
    configure(CONFIGURATION % (library, device))
    said = refuses_to_start()
    # The journal keeps what earlier turns said.
    said = said[said.rindex("Starting"):] if "Starting" in said else said
    assert says in said, f"{says!r} is not in:\n{said}"
    assert fake("misuses")["misuses"] == 0, said
    if "async-fail-at=1" not in words:
        # A card that is lost takes nothing back, until the process ends.
        the_cards_are_given_back()


with subtest("no library, not a library, one that lacks a function, the toolkit's stub"):
    refused("/nowhere/libcuda.so.1 does not exist", library="/nowhere/libcuda.so.1")
    refused("cannot load the CUDA driver library /etc/passwd", library="/etc/passwd")
    machine.succeed(f"fake-cuda-ctl omit {FAKE_DRIVER} cuMemCreate /run/less.so.1")
    refused("lacks cuMemCreate", library="/run/less.so.1")
    refused("stub for linking", "stub=1")

with subtest("no card, an unknown card, one that is too old, one that does not start"):
    refused("CUDA_ERROR_NO_DEVICE (100)", "devices=0")
    refused("no GPU 3 here; the driver has 0 (Fake GPU 0", device="3")
    refused("at least CUDA 11.0", "driver-version=10020")
    refused("CUDA_ERROR_UNKNOWN (999)", "init-failures=9")
    refused("cannot map memory by handles", "no-virtual-memory=1")

with subtest("a card without room, one that is lost, one that lies"):
    refused("free", "others-0=500M")
    refused("CUDA_ERROR_LAUNCH_FAILED (719)", "async-fail-at=1")
    refused("is not what was written", "corrupt-every=1")

with subtest("a card that is well serves with the same configuration"):
    fake_cards("device-bytes=512M")
    configure(CONFIGURATION % (FAKE_DRIVER, "0000:0a:00.0"))
    start_store()
    hold_pages(size="64M", resident="32M")
    held_pages_are_right()
    assert tier("cuda:0")["extents_used"] > 0, status()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
    the_cards_are_given_back()
