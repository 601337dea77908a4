# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# A card is lost while pages go to it and come back, as after an asynchronous failure: no
# page is ever wrong. What only that card had is an I/O error, which ends the program that
# touches it and nothing else; the machine and the store go on.
fake_cards("device-bytes=512M")
configure(f"""
[swap]
size = "256M"
[tier]
kind = "cuda"
size = "64M"
[cuda]
library = "{FAKE_DRIVER}"
[spill]
path = "/dev/disk/by-id/virtio-spill"
""")
start_store()
pid = machine.succeed("pgrep -x sluice-store").strip()


def busy(name, size, seconds):
    """Starts a program that swaps by its own limit, not by the machine's."""
    machine.succeed(
        f"systemd-run --quiet --unit={name} -p MemoryMax=32M -p OOMPolicy=continue "
        f"-p StandardOutput=file:/run/{name}.json -p StandardError=journal --remain-after-exit "
        f"pressure --bytes {size} --seconds {seconds} --random --write 30 --ready /run/{name}.ready"
    )
    machine.wait_for_file(f"/run/{name}.ready")


def ended(name):
    """How that program ended: its result, and its exit status or signal."""
    machine.wait_until_succeeds(
        f"systemctl show -p SubState {name} | grep -Eq 'exited|failed'", timeout=400
    )
    text = machine.succeed(f"systemctl show -p Result -p ExecMainStatus {name}")
    return dict(line.split("=") for line in text.split())


busy("victim", "128M", 120)
copies = fake("copies-done")["copies-done"]
machine.wait_until_succeeds(
    f"[ $(fake-cuda-ctl {FAKE_CONTROL} get copies-done | cut -d= -f2) -gt {copies + 500} ]"
)

with subtest("the card fails at a completion"):
    fake_set("async-fail-code=719", "async-fail-at=100")
    end = ended("victim")
    # 7 is SIGBUS: what the kernel gives for a page that cannot be read. 1 would be a wrong page.
    assert end in (
        {"Result": "success", "ExecMainStatus": "0"},
        {"Result": "signal", "ExecMainStatus": "7"},
        {"Result": "core-dump", "ExecMainStatus": "7"},
    ), end
    assert fake("async-fail-at")["async-fail-at"] == 0

with subtest("the store is the one that was started, answers, and says what happened"):
    machine.succeed(f"pgrep -x sluice-store | grep -qx {pid}")
    after = status()
    machine.log(str(after))
    assert after["state"] == "serving", after
    assert after["errors"]["checksum"] == 0, after
    assert next(one for one in after["tiers"] if one["name"] == "cuda:0")["faulty"], after

with subtest("a new program's pages go to the spill, and all are right"):
    busy("heir", "56M", 10)
    assert ended("heir") == {"Result": "success", "ExecMainStatus": "0"}
    report = json.loads(machine.succeed("cat /run/heir.json"))
    assert report["wrong"] == 0 and report["major_faults"] > 100, report
    assert tier("spill")["extents_used"] > 0, status()

with subtest("swap goes off"):
    machine.succeed("systemctl stop victim heir; systemctl reset-failed victim heir || true")
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
