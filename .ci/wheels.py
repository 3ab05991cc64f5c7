"""Build one wheel for each supported CPython on this machine, and with `--sdist` a source distribution.

In: interpreters on PATH, in pyenv, or given by `--python`.  Out: files in `--out`; older ones are removed first.
The extension in a wheel has no debug sections.  maturin reads the platform tag off the C library: `manylinux_2_28` in the
container of that name, a newer one elsewhere.

    python .ci/wheels.py --out wheels
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def find(version: str) -> str | None:
    """An interpreter of `version` that starts and reports this version."""
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


DISTRIBUTION = "torch_pycompiler"  # as in file names
NEEDED = ("pycompiler/py.typed", "pycompiler/_native.pyi", "pycompiler/kernels/cpp/pyc_prelude.h")


def has_debug_sections(library: bytes) -> bool:
    with tempfile.NamedTemporaryFile() as file:
        file.write(library)
        file.flush()
        listed = subprocess.run(["readelf", "-SW", file.name], capture_output=True, text=True, check=True)
    return ".debug_" in listed.stdout


def defects(wheel: Path) -> list[str]:
    """Problems of a wheel: top-level names beside the package and its metadata, missing files, debug sections."""
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    foreign = sorted(t for t in tops if t != "pycompiler" and not t.startswith(f"{DISTRIBUTION}-"))
    found = [f"{name} would lie in site-packages; expected pycompiler alone" for name in foreign]
    found += [f"{name} is missing" for name in NEEDED if name not in names]
    engines = [name for name in names if name.startswith("pycompiler/_native.") and name.endswith(".so")]
    found += [f"{len(engines)} extension modules; expected 1"] if len(engines) != 1 else []
    found += [f"{name} has debug sections" for name in engines if has_debug_sections(archive.read(name))]
    return [f"{wheel.name}: {text}" for text in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--maturin", default="maturin")
    parser.add_argument("--out", type=Path, default=Path("wheels"))
    parser.add_argument("--python", action="append", help="interpreters to build for, instead of those found")
    parser.add_argument("--sdist", action="store_true", help="build a source distribution as well")
    args = parser.parse_args()
    found = args.python or [path for version in VERSIONS if (path := find(version))]
    if not found:
        print(f"no CPython of {', '.join(VERSIONS)} found", file=sys.stderr)
        return 1
    for old in args.out.glob(f"{DISTRIBUTION}-*"):
        old.unlink()
    interpreters = [word for path in found for word in ("-i", path)]
    command = [args.maturin, "build", "--release", "--strip", "--out", str(args.out), *interpreters]
    subprocess.run([*command, *(["--sdist"] if args.sdist else [])], check=True)
    built = sorted(args.out.glob(f"{DISTRIBUTION}-*"))
    print("\n".join(path.name for path in built))
    wheels = [path for path in built if path.suffix == ".whl"]
    wrong = [text for path in wheels for text in defects(path)]
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 0 if len(wheels) == len(found) and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
