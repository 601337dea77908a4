# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# `systemctl reload` hands over to the program that is at the path now, with pages in swap
# and without detaching anything; a program that does not start leaves the old one in charge.
configure("""
[swap]
size = "192M"
[tier]
kind = "ram"
""")
machine.succeed(
    "mkdir -p /run/new /run/systemd/system/sluice-store.service.d",
    "cp /usr/bin/sluice-store /run/new/sluice-store",
)
write_file(
    "/run/systemd/system/sluice-store.service.d/path.conf",
    "[Service]\nExecStart=\nExecStart=@/usr/bin/sluice-store @sluice-store hold --executable /run/new/sluice-store",
)
machine.succeed("systemctl daemon-reload")
start_store()
hold_pages(size="96M", resident="48M")
holder = machine.succeed("pgrep -x sluice-hold").strip()


def reload_and_wait(before):
    machine.succeed(f"systemctl reload {STORE}")
    machine.wait_until_succeeds(f"pgrep -x sluice-store && ! pgrep -x sluice-store | grep -qx {before}")
    machine.wait_until_succeeds("sluice status --json | grep -q '\"state\": *\"serving\"'")
    assert machine.succeed("pgrep -x sluice-hold").strip() == holder
    return store_pid()


with subtest("the new program takes over"):
    first = store_pid()
    assert machine.succeed(f"readlink /proc/{first}/exe").strip() == "/usr/bin/sluice-store"
    # Another file at the path, as an upgrade leaves it.
    machine.succeed("cp /run/new/sluice-store /run/new/x && mv /run/new/x /run/new/sluice-store")
    second = reload_and_wait(first)
    assert machine.succeed(f"readlink /proc/{second}/exe").strip() == "/run/new/sluice-store"

with subtest("a store of the new program that is killed comes back as the new program"):
    machine.succeed("rm /run/new/sluice-store")
    kill_store_and_wait()
    said = machine.succeed(f"readlink /proc/{store_pid()}/exe").strip()
    assert said == "/run/new/sluice-store (deleted)", said

with subtest("no program at the path: the old one goes on"):
    reload_and_wait(store_pid())
    assert "the old one goes on" in journal()

with subtest("no page was lost"):
    held_pages_are_right()
    assert not any(status()["errors"].values()), status()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()
