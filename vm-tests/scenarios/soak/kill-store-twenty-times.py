# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=9000
# As kill-store-under-pressure, twenty times in a row, and the holder in between.
configure("""
[swap]
size = "256M"
devices = 2
[tier]
kind = "ram"
size = "192M"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
start_store()
hold_pages(size="128M", resident="48M")
for turn in range(20):
    with subtest(f"kill {turn}"):
        keep_busy(10)
        kill_store_and_wait()
        if turn % 5 == 4:
            machine.succeed("kill -KILL $(pgrep -x sluice-hold)")
            machine.wait_until_succeeds(
                f"[ $(journalctl -o cat -u {STORE} | grep -c 'took over a store') -eq {turn // 5 + 1} ]"
            )
        busy_pages_are_right()
        machine.succeed("rm /run/busy.json")
held_pages_are_right()
assert not any(status()["errors"].values()), status()
machine.succeed(f"systemctl stop {STORE}")
nothing_is_left_behind()
