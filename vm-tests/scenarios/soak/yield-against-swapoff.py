# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=1500
# Giving fast memory back by moving pages to the spill, beside giving it back by switching
# swap off, in one machine. A measurement: it prints both and their ratio, and fails only
# if a page is wrong or the memory did not come back.
configure("""
[swap]
size = "192M"
[tier]
kind = "ram"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
HELD = {"size": "192M", "resident": "40M"}
seconds, mebibytes = {}, {}

with subtest("by moving"):
    start_store()
    hold_pages(**HELD)
    mebibytes["yield"] = swaps()["/dev/nbd0"]["used"] / MIB
    gone = order("vram drain --within 300s")
    assert gone["outcome"] == "done" and gone["held_bytes"] == 0, gone
    seconds["yield"] = gone["elapsed_ms"] / 1000
    held_pages_are_right()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()

with subtest("by switching swap off"):
    start_store()
    hold_pages(**HELD)
    mebibytes["swapoff"] = swaps()["/dev/nbd0"]["used"] / MIB
    seconds["swapoff"] = float(
        machine.succeed(
            "begun=$(date +%s%N); sluice-store detach 2>/dev/null;"
            "echo $((($(date +%s%N) - begun) / 1000000))",
            timeout=300,
        )
    ) / 1000
    assert not swaps(), swaps()
    held_pages_are_right()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()

each = {way: seconds[way] / mebibytes[way] for way in seconds}
for way, needed in each.items():
    print(f"{way}: {mebibytes[way]:.0f} MiB in {seconds[way]:.2f} s, {1000 * needed:.1f} ms/MiB")
print(f"swapoff takes {each['swapoff'] / each['yield']:.1f} times as long as yield")
