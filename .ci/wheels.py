"""Builds one wheel for each supported CPython found on this machine.

In: interpreters on PATH, in pyenv, or named by `--python`.  Out: wheels in `--out`, older ones removed.
Example: `python .ci/wheels.py --out wheels`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def find(version: str) -> str | None:
    """An interpreter of `version` that really starts, with the headers' version checked by itself."""
    on_path = shutil.which(f"python{version}")
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in [*([on_path] if on_path else []), *map(str, pyenv)]:
        seen = subprocess.run(
            [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"],
            capture_output=True,
            text=True,
            check=False,
        )
        if seen.returncode == 0 and seen.stdout.split()[0] == version:
            return seen.stdout.split(maxsplit=1)[1].strip()
    return None


def foreign(wheel: Path) -> set[str]:
    """Top-level names in a wheel that are not ours."""
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    return {name for name in tops if name != "pycompiler" and not name.startswith("pycompiler-")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--maturin", default="maturin")
    parser.add_argument("--out", type=Path, default=Path("wheels"))
    parser.add_argument("--python", action="append", help="interpreters to build for, instead of those found")
    args = parser.parse_args()
    found = args.python or [path for version in VERSIONS if (path := find(version))]
    if not found:
        print(f"no CPython of {', '.join(VERSIONS)} found", file=sys.stderr)
        return 1
    for old in args.out.glob("pycompiler-*.whl"):
        old.unlink()
    interpreters = [word for path in found for word in ("-i", path)]
    subprocess.run([args.maturin, "build", "--release", "--out", str(args.out), *interpreters], check=True)
    built = sorted(args.out.glob("pycompiler-*.whl"))
    print("\n".join(path.name for path in built))
    odd = {name for path in built for name in foreign(path)}
    if odd:
        print(
            f"a wheel installs {', '.join(sorted(odd))} into site-packages; expected pycompiler alone", file=sys.stderr
        )
    return 0 if len(built) == len(found) and not odd else 1


if __name__ == "__main__":
    sys.exit(main())
