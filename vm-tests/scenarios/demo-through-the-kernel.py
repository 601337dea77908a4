# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=600
# The demonstration as root: a block device of the kernel, on RAM and on a card,
# written and checked page by page, detached at the end.

for tier, size in (("ram", "96M"), ("cuda", "128M")):
    with subtest(tier):
        if tier == "cuda":
            fake_cards("device-bytes=256M")
        said = machine.succeed(
            f"LD_LIBRARY_PATH=$(dirname {FAKE_DRIVER}) SLUICE_FAKE_CUDA={FAKE_CONTROL} "
            f"sluice demo --nbd --tier {tier} --size {size} --seconds 2 2>&1",
            timeout=280,
        )
        assert "Every page was right." in said, said
        machine.fail("cat /sys/block/nbd*/pid")
        machine.fail("pgrep -x sluice-store")
