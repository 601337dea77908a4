# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: boot=cold memory=3072 timeout=3000
# Another daemon that serves GPU memory as swap, beside ours, on the same fake card in the
# same machine, in turns: the same program swaps by the same limit. A measurement: it
# prints, and fails only if a page is wrong. Run by hand:
#     SLUICE_PEER=/path/to/the/peer/program vm-tests/run --bin-dir target/guarded/debug \
#         --live soak/peer-on-the-fake-card
# The peer is one that reads VRAM_SOCK_PATH and VRAM_SETUP_SIZE_MB and serves NBD there.
import os

PEER_SOCKET = "/run/peer.sock"
# What one copy costs on a card, to both alike: nanoseconds of the caller's and the card's.
COST = os.environ.get("SLUICE_PEER_COST", "call-nanoseconds=0 copy-nanoseconds=0").split()
assert "SLUICE_PEER" in os.environ, "SLUICE_PEER names the peer's program"


def swap_in_turn():
    """One program that swaps to whatever swap is on; its report."""
    return json.loads(
        machine.succeed(
            "systemd-run --quiet --pipe --wait -p MemoryMax=48M -p MemorySwapMax=infinity "
            "pressure --bytes 192M --seconds 30 --random --write 30",
            timeout=900,
        )
    )


def with_ours():
    fake_cards("device-bytes=1536M", *COST)
    configure(f"""
[swap]
size = "1G"
[tier]
kind = "cuda"
[cuda]
library = "{FAKE_DRIVER}"
""")
    start_store()
    report = swap_in_turn()
    used = fake("copies-done", "misuses")
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
    return report, used


def with_the_peer():
    fake_cards("device-bytes=1536M", *COST)
    machine.succeed(
        "systemd-run --quiet --unit=peer -p LimitMEMLOCK=infinity -p OOMScoreAdjust=-1000 "
        f"-E SLUICE_FAKE_CUDA={FAKE_CONTROL} -E LD_LIBRARY_PATH={os.path.dirname(FAKE_DRIVER)} "
        f"-E VRAM_SOCK_PATH={PEER_SOCKET} -E VRAM_SETUP_SIZE_MB=1024 /usr/local/bin/peer",
        "modprobe nbd",
    )
    machine.wait_for_open_unix_socket(PEER_SOCKET)
    machine.succeed(f"nbd-client -unix {PEER_SOCKET} /dev/nbd1 -connections 4 -b 4096")
    machine.succeed("udevadm settle; mkswap -q /dev/nbd1; swapon -p 1500 /dev/nbd1")
    report = swap_in_turn()
    used = fake("copies-done", "misuses")
    machine.succeed("swapoff /dev/nbd1", "nbd-client -d /dev/nbd1", "systemctl stop peer")
    return report, used


machine.copy_from_host(os.environ["SLUICE_PEER"], "/usr/local/bin/peer")
machine.succeed("chmod 755 /usr/local/bin/peer")
for turn in range(2):
    for name, measure in {"sluice": with_ours, "peer": with_the_peer}.items():
        report, used = measure()
        assert report["wrong"] == 0, report
        rate = report["major_faults"] / report["seconds"]
        print(
            f"turn {turn} {name}: {rate:.0f} faults/s, p50 {report['p50_us']} us, "
            f"p99 {report['p99_us']} us, {used['copies-done']} copies; {report}"
        )
