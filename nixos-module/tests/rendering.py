# SPDX-License-Identifier: MIT OR Apache-2.0
"""From an evaluated configuration to the files that NixOS would install, and to the
page about the options."""

import json
import pathlib
import re
import textwrap

STORE = re.compile(r"/nix/store/[a-z0-9]{32}-[^/\s\"]*")
# Lines that only say where NixOS keeps programs and data.
PLACES = re.compile(r'^(Environment="?(PATH|LOCALE_ARCHIVE|TZDIR)=|X-(Restart|Reload)-Triggers=)')
LICENSE = "# SPDX-License-Identifier: MIT OR Apache-2.0\n"
UNIT_FOLDER = "etc/systemd/system"
PACKAGED = "/usr/lib/systemd/system"


def toml(settings: dict[str, object]) -> str:
    """Writes settings as TOML: keys before tables, both by name."""

    def table(path: list[str], values: dict[str, object]) -> list[str]:
        def is_list_of_tables(value: object) -> bool:
            return isinstance(value, list) and any(isinstance(item, dict) for item in value)

        nested = {k: v for k, v in values.items() if isinstance(v, dict) or is_list_of_tables(v)}
        plain = {key: value for key, value in values.items() if key not in nested}
        lines = [f"[{'.'.join(path)}]"] if path and (plain or not values) else []
        # Texts, numbers, booleans and lists of them look the same in JSON.
        lines += [f"{key} = {json.dumps(value)}" for key, value in sorted(plain.items())]
        for key, value in sorted(nested.items()):
            name = [*path, key]
            for item in value if isinstance(value, list) else [value]:
                inner = table(name, item)
                if isinstance(value, list):
                    inner[0] = f"[{inner[0]}]"
                lines += ["", *inner] if lines else inner
        return lines

    return "\n".join(table([], settings)) + "\n"


def unit(text: str) -> str:
    """A unit's text as it is anywhere: Debian's paths, keys by name, no empty lines.

    The order of lines with the same key is kept, which is all that means something.
    """
    sections: list[tuple[str, list[str]]] = []
    for line in STORE.sub("/usr", text).splitlines():
        if line.startswith("["):
            sections.append((line, []))
        elif line.strip() and not PLACES.match(line):
            sections[-1][1].append(line)
    parts = [
        "\n".join([name, *sorted(lines, key=lambda line: line.split("=", 1)[0])])
        for name, lines in sections
        if lines and name != "[Install]"
    ]
    return "\n\n".join(parts) + "\n"


def tree(example: dict[str, object], packaged: set[str]) -> dict[str, str]:
    """The files of an example: path to content, or to `-> target` for a link.

    `packaged` names the units that come with the packages: these the module adds to.
    """
    files: dict[str, str] = {}
    if "sluice/sluice.toml" in example["etc"]:
        files["etc/sluice/sluice.toml"] = toml(example["settings"])
    for name, content in example["etc"].items():
        if name.startswith("xdg/"):
            files[f"etc/{name}"] = STORE.sub("/usr", content)
    for name, rendered in example["units"].items():
        text = unit(rendered["text"])
        place = f"{name}.d/overrides.conf" if name in packaged else name
        if text.strip():
            files[f"{UNIT_FOLDER}/{place}"] = text
        target = f"{PACKAGED if name in packaged else '..'}/{name}"
        for kind, key in (("wants", "wantedBy"), ("requires", "requiredBy")):
            for other in rendered[key]:
                files[f"{UNIT_FOLDER}/{other}.{kind}/{name}"] = f"-> {target}"
    files["etc/modules-load.d/nixos.conf"] = "".join(f"{m}\n" for m in example["modules"])
    if example["modprobe"]:
        files["etc/modprobe.d/nixos.conf"] = example["modprobe"].rstrip() + "\n"
    return files


def write(files: dict[str, str], folder: pathlib.Path) -> None:
    """Puts files and links below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content.startswith("-> "):
            path.symlink_to(content.removeprefix("-> "))
        else:
            path.write_text(content, encoding="utf-8")


def read(folder: pathlib.Path) -> dict[str, str]:
    """The files and links below a folder, as `tree` gives them."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_text(encoding="utf-8")
    return found


MARK = "<!-- From here on written by: BLESS=1 make nix -->\n"


def options_page(options: list[dict[str, object]]) -> str:
    """The reference of the options, from their own descriptions."""
    return "".join(_option(option) for option in sorted(options, key=lambda item: item["name"]))


def _option(option: dict[str, object]) -> str:
    name = option["name"].removeprefix("services.sluice.")
    lines = [f"\n## `{name}`\n", _markdown(option["description"]), f"\n**Type:** {option['type']}\n"]
    lines += _value("Default", option["default"])
    lines += _value("Example", option["example"])
    return "\n".join(lines)


def _markdown(text: str) -> str:
    """Our page's Markdown: without the roles that nixpkgs' has."""
    return re.sub(r"\{(option|file|command|manpage)\}`", "`", text).strip()


def _value(title: str, value: dict[str, str] | None) -> list[str]:
    if value is None:
        return []
    text = textwrap.dedent(value["text"]).strip()
    if "\n" in text:
        return [f"**{title}:**\n\n```nix\n{text}\n```\n"]
    return [f"**{title}:** `{text}`\n"]
