# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: timeout=900
# The holder is killed: the store serves on, systemd starts another holder, which gets
# everything; then the store can be killed again.
configure("""
[swap]
size = "192M"
[tier]
kind = "ram"
""")
start_store()
hold_pages(size="96M", resident="48M")
store = store_pid()
for turn in range(2):
    with subtest(f"the holder is killed, {turn}"):
        holder = machine.succeed("pgrep -x sluice-hold").strip()
        machine.succeed(f"kill -KILL {holder}")
        machine.wait_until_succeeds(
            f"systemctl is-active {STORE} && pgrep -x sluice-hold && ! pgrep -x sluice-hold | grep -qx {holder}"
        )
        machine.wait_until_succeeds(
            f"[ $(journalctl -o cat -u {STORE} | grep -c 'took over a store') -eq {turn + 1} ]"
        )
        assert store_pid() == store
        assert status()["state"] == "serving", status()

with subtest("a second holder is refused and leaves the first alone"):
    said = machine.fail("sluice-store hold 2>&1", timeout=120)
    assert "holds the store already" in said, said
    assert store_pid() == store

with subtest("the new holder brings the store back as the first would have"):
    kill_store_and_wait()
    held_pages_are_right()
    machine.succeed(f"systemctl stop {STORE}")
    nothing_is_left_behind()

with subtest("without systemd the store starts a holder itself"):
    machine.succeed(
        "setsid env -u NOTIFY_SOCKET -u JOURNAL_STREAM sluice-store hold >/run/hold.log 2>&1 & disown"
    )
    machine.wait_until_succeeds("grep -q nbd /proc/swaps && sluice status")
    store = store_pid()
    holder = machine.succeed("pgrep -x sluice-hold").strip()
    machine.succeed(f"kill -KILL {holder}")
    machine.wait_until_succeeds("grep -q 'took over a store' /run/hold.log")
    kill_store_and_wait()
    machine.succeed("kill -TERM $(pgrep -x sluice-hold)")
    machine.wait_until_fails("pgrep -x sluice-hold")
    nothing_is_left_behind()
