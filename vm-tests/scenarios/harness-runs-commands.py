# SPDX-License-Identifier: MIT OR Apache-2.0
# vm: binaries=none
# The harness itself: what a command says and how it ends arrives unchanged, and power
# is what it says it is. A command that fails must fail a scenario.
import hashlib
import pathlib
import tempfile


def raises(action):
    """Whether an action is refused, as a failed expectation is."""
    try:
        action()
    except Exception:
        return True
    return False


machine.start()
machine.wait_for_unit("multi-user.target")

with subtest("status and output of a command arrive"):
    assert machine.succeed("echo one", "echo two") == "one\ntwo\n"
    assert machine.execute("echo out; echo err >&2; exit 7") == (7, "out\n")
    assert machine.execute("false | true")[0] == 1, "a failed part of a pipe counts"
    assert machine.execute("sleep 60", timeout=1)[0] == 124
    assert machine.fail("echo said; false") == "said\n"

with subtest("a failed expectation is an error"):
    assert raises(lambda: machine.succeed("false"))
    assert raises(lambda: machine.fail("true"))
    assert raises(lambda: machine.fail("sleep 60", timeout=1)), "hanging is not failing"
    assert raises(lambda: machine.wait_for_unit("no-such.service"))
    assert raises(lambda: machine.wait_until_succeeds("false", timeout=1))

with subtest("output that looks like the protocol, and kernel messages, do no harm"):
    awkward = "ready 0 1 \n\t\x01\x7fä €\n3 0 5 aGk=\n"
    machine.succeed("while sleep 0.05; do echo noise >/dev/kmsg; done >/dev/null 2>&1 &")
    assert machine.succeed(f"printf %s '{awkward}'") == awkward
    assert len(machine.succeed("head -c 300000 /dev/zero | tr '\\0' x")) == 300000

with subtest("files arrive whole"):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "blob"
        file.write_bytes(bytes(range(256)) * 600)
        file.chmod(0o750)
        machine.copy_from_host(str(file), "/run/there/blob")
        wanted = hashlib.sha256(file.read_bytes()).hexdigest()
    assert machine.succeed("sha256sum </run/there/blob").split()[0] == wanted
    assert machine.succeed("stat -c %a /run/there/blob") == "750\n"

with subtest("the drives are blank, and the module that a test loads is not loaded"):
    for drive in ("spill", "swap"):
        machine.succeed(f"cmp -n 1048576 /dev/zero /dev/disk/by-id/virtio-{drive}")
    machine.fail("test -e /sys/module/nbd")

with subtest("a crash loses memory and keeps drives, and so does a reboot"):
    machine.succeed(
        "echo here >/run/mark", "echo kept | dd conv=fsync of=/dev/disk/by-id/virtio-spill"
    )
    machine.crash()
    assert not machine.is_up()
    machine.start()
    machine.wait_for_unit("multi-user.target")
    machine.fail("test -e /run/mark")
    assert machine.succeed("head -c 4 /dev/disk/by-id/virtio-spill") == "kept"
    machine.shutdown()
    assert not machine.is_up()
