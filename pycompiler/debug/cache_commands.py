"""`python -m pycompiler cache ls|rm|verify`: commands for the kernel cache.

In: keys, or prefixes of keys (none: all).  Out: one line per entry, and an exit status.  `ls` names the program and the line
that made an entry; several programs may use it, and the first one is named.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pycompiler.errors import ArgumentError
from pycompiler.runtime import disk_cache, disk_entries
from pycompiler.runtime.disk_entries import Entry

SHOWN = 12  # characters of a key


def chosen(root: Path, keys: list[str]) -> list[Entry]:
    """The entries whose keys have one of the prefixes; ArgumentError for a prefix without an entry."""
    found = disk_entries.entries(root)
    for key in keys:
        if not any(e.key.startswith(key) for e in found):
            raise ArgumentError(f"no entry of {root} begins with {key!r}")
    return [e for e in found if not keys or any(e.key.startswith(key) for key in keys)]


def line(entry: Entry) -> str:
    used = f"used {entry.age_days:.1f} days ago"
    made = entry.origin or "made by an unknown program"
    return f"{entry.key[:SHOWN]}  {entry.bytes / 1024:8.0f} KiB  {entry.kernels:3} kernels  {used}  {made}"


def data(entry: Entry) -> dict[str, Any]:
    """An entry as JSON; `used`: seconds since the epoch, `origin`: null for an entry of an earlier version."""
    origin = entry.origin
    return {
        "key": entry.key, "bytes": entry.bytes, "kernels": entry.kernels, "used": entry.used,
        "origin": asdict(origin) if origin else None,
    }  # fmt: skip


def ls(root: Path, options: argparse.Namespace) -> int:
    found = chosen(root, options.keys)
    if options.json:
        print(json.dumps([data(entry) for entry in found], indent=1))
        return 0
    for entry in found:
        print(line(entry))
    print(f"{root}: {len(found)} entries, {sum(e.bytes for e in found) / 1e6:.1f} MB")
    return 0


def rm(root: Path, options: argparse.Namespace) -> int:
    """Removes the named entries, old entries, or all: one of the three must be given."""
    if not (options.keys or options.all or options.older is not None):
        raise ArgumentError("cache rm takes keys, --older DAYS, or --all")
    found = [e for e in chosen(root, options.keys) if options.older is None or e.age_days > options.older]
    count = disk_entries.remove(found)
    disk_cache.clean_leftovers(root)
    print(f"{root}: {count} entries removed, {sum(e.bytes for e in found) / 1e6:.1f} MB")
    return int(count < len(found))


def verify(root: Path, options: argparse.Namespace) -> int:
    """Reads every file and compares its digest; 1 where one is wrong (the next compile builds it again)."""
    found, wrong = chosen(root, options.keys), 0
    for entry in found:
        if damage := entry.damage():
            wrong += 1
            print(f"{entry.key[:SHOWN]}  damaged: {damage}")
    print(f"{root}: {len(found)} entries, {wrong} damaged")
    return int(wrong > 0)


COMMANDS = {"ls": ls, "rm": rm, "verify": verify}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True)
    for name, run in COMMANDS.items():
        command = commands.add_parser(
            name, help=(run.__doc__ or "lists the entries, the most recently used first").split(":")[0]
        )
        command.add_argument("keys", nargs="*", help="keys, or prefixes of keys; default: all")
        if name == "ls":
            command.add_argument("--json", action="store_true", help="print the entries as JSON")
        if name == "rm":
            command.add_argument("--all", action="store_true", help="remove all entries")
            command.add_argument(
                "--older", type=float, metavar="DAYS", help="remove entries that were not used for so many days"
            )


def main(options: argparse.Namespace) -> int:
    try:
        return COMMANDS[options.action](disk_cache.checked_root(), options)
    except (OSError, ArgumentError) as error:
        print(f"cache: {error}")
        return 2
