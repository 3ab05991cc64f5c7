"""Lets the tests of this folder run under a bare interpreter: without torch the package's own `__init__` files are skipped.

python -m pytest -c /dev/null --rootdir=. --confcutdir=tests/capture/bytecode tests/capture/bytecode
"""

import importlib.util
import pathlib
import sys
import types

_ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(_ROOT))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

if importlib.util.find_spec("torch") is None:
    for name in ("pycompiler", "pycompiler.capture"):
        package = types.ModuleType(name)
        package.__path__ = [str(_ROOT.joinpath(*name.split(".")))]
        sys.modules[name] = package
