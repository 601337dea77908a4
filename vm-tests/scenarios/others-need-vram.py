# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=1200
# Another program takes GPU memory into the reserve: sluiced has the store give as much of
# its own back while programs fault on it, and take it again when the other is gone. A GPU
# that is closed is not asked.
fake_cards("device-bytes=512M")
configure(f"""
[swap]
size = "256M"
[tier]
kind = "cuda"
size = "256M"
reserve = "128M"
[cuda]
library = "{FAKE_DRIVER}"
[spill]
path = "/dev/disk/by-id/virtio-spill"
[control]
dwell_s = 1
""")
start_store()
start_sluiced()


def card():
    fast = tier("cuda:0")
    return fast["target_bytes"] // MIB, fast["held_bytes"] // MIB


until_rule("configured")
# The cards' memory is the machine's here, so the programs alone are short of it.
hold_pages(size="168M", resident="32M")
keep_busy()
assert card()[0] == 256, card()

with subtest("another program grows into the reserve: what it needs is given back"):
    # 512 MiB less 240 and the reserve of 128: 144 MiB are left, two slabs.
    fake_set("others-0=240M")
    until_rule("vram-pressure")
    assert card() == (128, 128), card()
    fake_set("others-0=350M")
    machine.wait_until_succeeds(
        "sluice explain --json >/run/why.json;"
        "grep -q '\"goal_bytes\": 0,' /run/why.json && grep -q '\"progress\": \"settled\"' /run/why.json"
    )
    assert card() == (0, 0), card()

with subtest("the other program ends: the store takes its memory again"):
    fake_set("others-0=0")
    until_rule("configured")
    assert card()[0] == 256, card()

busy_pages_are_right()
held_pages_are_right()
assert not any(status()["errors"].values()), status()

with subtest("nobody asks a GPU that is closed"):
    # The fake driver is its own NVML, under the name of the file.
    asks = f"grep -q {FAKE_DRIVER} /proc/$(pgrep -x sluiced)/maps"
    machine.succeed(asks)
    order("gpu close --within 60s")
    machine.wait_until_fails(asks)
    order("vram resume --within 60s")
    machine.wait_until_succeeds(asks)

machine.succeed("systemctl stop sluiced", f"systemctl stop {STORE}")
nothing_is_left_behind()
the_cards_are_given_back()
