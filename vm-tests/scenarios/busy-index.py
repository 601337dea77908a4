# SPDX-License-Identifier: MIT OR Apache-2.0
# An nbd device that somebody else uses is refused by name; where none is named, the
# store takes a free one. Either way the other's device stays as it is.
machine.succeed(
    "systemd-run --quiet --unit=other sluice serve --tier ram --size 64M --socket /run/other.sock"
)
machine.wait_for_open_unix_socket("/run/other.sock")
machine.succeed(
    "modprobe nbd max_part=0",
    "nbd-client -unix /run/other.sock /dev/nbd0",
    "echo ours | dd of=/dev/nbd0 bs=4096 conv=sync,fsync oflag=direct",
)
SWAP = '[swap]\nsize = "64M"\n[tier]\nkind = "ram"\n'


def the_other_is_untouched():
    said = machine.succeed("dd if=/dev/nbd0 bs=4096 count=1 iflag=direct | head -c 4")
    assert said == "ours", said


with subtest("the device that was asked for is busy"):
    configure(SWAP + "[nbd]\nindex = 0")
    machine.fail(f"systemctl start {STORE}")
    said = journal()
    assert "nbd0" in said, said
    assert not swaps()
    machine.fail("pgrep -x sluice-store")
    the_other_is_untouched()

with subtest("without a number the next free one is taken"):
    configure(SWAP)
    start_store()
    assert list(swaps()) == ["/dev/nbd1"]
    the_other_is_untouched()
    machine.succeed(f"systemctl stop {STORE}")
    the_other_is_untouched()
