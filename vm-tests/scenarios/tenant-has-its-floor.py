# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=1200
# A service with a floor of GPU memory starts once the store has given it back, while programs
# fault on the pages; has it over the end of sluiced and of who holds its lease; and the store
# takes the memory again when it has stopped. One whose floor cannot be had is not started.
fake_cards("device-bytes=512M")
configure(f"""
[swap]
size = "256M"
[tier]
kind = "cuda"
size = "256M"
[cuda]
library = "{FAKE_DRIVER}"
[spill]
path = "/dev/disk/by-id/virtio-spill"
[control]
dwell_s = 1
[tenants.model]
unit = "model.service"
memory.min = "128M"
[tenants.late]
unit = "late.service"
memory.min = "256M"
within_s = 1
""")
for name in ("model", "late"):
    write_file(
        f"/etc/systemd/system/{name}.service",
        f"[Service]\nExecStartPre=sh -c 'sluice status --json >/run/{name}-saw.json'\nExecStart=sleep infinity",
    )
    machine.succeed(
        f"mkdir /etc/systemd/system/{name}.service.d",
        f"sluice tenant unit {name} >/etc/systemd/system/{name}.service.d/50-sluice.conf",
    )
start_store()
machine.succeed(
    "systemctl daemon-reload",
    "systemctl reload dbus",
    "systemctl start sluiced || { journalctl -u sluiced -n 30 >&2; false; }",
)


def target():
    return tier("cuda:0")["target_bytes"] // MIB


def tenant(name):
    listed = json.loads(machine.succeed("sluice tenant list --json"))
    return next(one for one in listed if one["name"] == name)


def until_target(mebibytes):
    machine.wait_until_succeeds(
        f"sluice status --json | grep -q '\"target_bytes\": {mebibytes * MIB}'"
    )


# The card's memory is the machine's here, so the programs alone are short of it.
hold_pages(size="168M", resident="32M")
keep_busy()
assert tenant("model")["waits"] and not tenant("model")["held"], tenant("model")

with subtest("it starts with its floor free, while programs fault on the rest"):
    machine.succeed("systemctl start model || { journalctl -u sluice-reserve@model >&2; false; }")
    saw = json.loads(machine.succeed("cat /run/model-saw.json"))["tiers"]
    held = next(one for one in saw if one["name"] == "cuda:0")["held_bytes"] // MIB
    assert held <= 128, f"{held} MiB were held when it started"
    assert tenant("model")["held"], tenant("model")

with subtest("sluiced and who holds the lease are killed: it has its floor again"):
    for unit in ("sluiced", "sluice-reserve@model"):
        machine.succeed(f"systemctl kill -s KILL {unit}")
        machine.wait_until_succeeds(f"systemctl is-active {unit}")
        machine.wait_until_succeeds(
            "busctl get-property org.sluice.Sluice1 /org/sluice/Sluice1 org.sluice.Sluice1 LeasedBytes"
            f" | grep -q {128 * MIB}"
        )
        machine.succeed("systemctl is-active model")

with subtest("it stops, and the store takes the memory again"):
    machine.succeed("systemctl stop model")
    machine.wait_until_fails("systemctl is-active sluice-reserve@model")
    until_target(256)

with subtest("a floor that is not free in time keeps its service from starting, and nothing else"):
    disk = machine.succeed("realpath /dev/disk/by-id/virtio-spill").strip()
    limit = f"systemctl set-property --runtime {STORE} 'IOWriteBandwidthMax={disk}"
    machine.succeed(f"{limit} 1536K'")
    machine.fail("systemctl start late")
    machine.fail("test -e /run/late-saw.json")
    said = machine.succeed("journalctl --no-pager -o cat -u sluice-reserve@late")
    assert "not given back in time" in said, said
    machine.succeed(f"{limit} infinity'")
    until_target(256)

busy_pages_are_right()
held_pages_are_right()
assert not any(status()["errors"].values()), status()
machine.succeed("systemctl stop sluiced", f"systemctl stop {STORE}")
nothing_is_left_behind()
the_cards_are_given_back()
