# SPDX-License-Identifier: MIT OR Apache-2.0
# A value that cannot be is an error with its place in the file and exit status 2, and
# nothing on the machine is changed by it. It is never replaced by a default.
GOOD = {
    "swap": {"size": '"128M"', "priority": "1500", "discard": "true", "devices": "1"},
    "tier": {"kind": '"ram"'},
}
BAD = [
    ("swap", "size", '"0"'),
    ("swap", "size", '"63M"'),
    ("swap", "size", '"129M"'),
    ("swap", "size", '"128 lots"'),
    ("swap", "size", '"9T"'),
    ("swap", "size", "-1"),
    ("swap", "priority", "32768"),
    ("swap", "priority", "-2"),
    ("swap", "priority", '"high"'),
    ("swap", "discard", '"yes"'),
    ("swap", "devices", "0"),
    ("swap", "devices", "17"),
    ("swap", "durability", '"raid"'),
    ("swap", "durability", '"mirror"'),
    ("swap", "typo", "1"),
    ("tier", "kind", '"vram"'),
    ("tier", "size", '"256M"'),
    ("tier", "size", '"64M"'),
    ("spill", "path", '"relative/path"'),
    ("nbd", "index", "-1"),
    ("nbd", "index", "1048576"),
    ("nbd", "io_timeout_ms", "0"),
    ("nbd", "dead_connection_timeout_s", "0"),
    ("log", "level", '"loud"'),
]


def rendered(section, key, value):
    """The good configuration with one value changed, and the line of that value."""
    tables = {name: dict(keys) for name, keys in GOOD.items()}
    tables.setdefault(section, {})[key] = value
    lines = []
    for name, keys in tables.items():
        lines += [f"[{name}]", *(f"{k} = {v}" for k, v in keys.items())]
    return "\n".join(lines), lines.index(f"{key} = {value}") + 1


machine.fail("test -e /sys/module/nbd")
for section, key, value in BAD:
    with subtest(f"{section}.{key} = {value}"):
        text, line = rendered(section, key, value)
        write_file("/run/bad.toml", text)
        code, said = machine.execute("sluice-store run --config /run/bad.toml 2>&1")
        assert code == 2, (code, said)
        assert f"/run/bad.toml:{line}:" in said, said

with subtest("a file that is not there, and one that is no TOML"):
    assert machine.execute("sluice-store run --config /run/none.toml")[0] == 2
    write_file("/run/bad.toml", "[swap")
    assert machine.execute("sluice-store run --config /run/bad.toml")[0] == 2

with subtest("the unit fails too, and nothing was changed"):
    configure('[swap]\nsize = "63M"\n[tier]\nkind = "ram"')
    said = refuses_to_start()
    assert f"{CONFIG}:2:" in said, said
    machine.fail("test -e /sys/module/nbd")
