"""The walls: stage order, no import cycle, nothing of the peer's compiler, `unsafe` only where it is allowed.

Every import statement counts, function-local and `TYPE_CHECKING` ones too, and those in text that is printed as code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from pycompiler import _native

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pycompiler"

BASE = {"ir", "config", "errors", "logs", "_native"}
STAGES = {"capture", "autograd", "lowering", "scheduling", "codegen", "runtime"}
# folder or module of the package -> what it may import besides itself
MAY_IMPORT: dict[str, set[str]] = {
    "errors": {"ir"},  # UserFrame, for annotations only
    "config": {"errors"},
    "torch_logs": set(),
    "logs": {"errors", "torch_logs"},
    "ir": {"errors"},
    **{stage: BASE for stage in STAGES},
    "backends": BASE,  # a registry; pipeline puts the compilers that it composes into it
    "progress": {"config", "ir"},
    "background": {"config", "ir", "logs"},
    "regions": BASE,
    "graphs": BASE | {"lowering", "scheduling", "codegen", "runtime", "progress"},
    "pipeline": BASE | {"capture", "autograd", "background", "backends", "graphs", "progress", "regions"},
    "artefacts": BASE | {"capture", "autograd", "runtime", "pipeline", "regions", "wrapping"},  # their data, in a file
    "distributed": BASE | {"pipeline"},
    "wrapping": BASE | {"pipeline"},
    "api": BASE | {"artefacts", "wrapping", "pipeline", "background", "backends", "distributed"},
    "engine": BASE | {"pipeline", "runtime"},  # what the engine is handed
    "exc": {"errors"},
    "absent": set(),
    "debug": BASE
    | {
        "pipeline",
        "graphs",
        "backends",
        "api",
        "wrapping",
        "capture",
        "autograd",
        "lowering",
        "runtime",
    },  # shows what they record
    "utils": {"ir", "debug"},  # names under which the documents look for them
    "__main__": {"debug"},
    "__init__": BASE | {"absent", "api", "backends", "debug", "distributed", "engine", "exc", "utils"},
}

PEER = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch.aot_autograd",
    "torch._functorch._aot_autograd",
    "torch._functorch.partitioners",
    "torch._functorch.compilers",
)


PRINTED = re.compile(r"^\s*(?:from|import)\s+((?:pycompiler|torch)\.[\w.]+)", re.MULTILINE)
BY_NAME = ("import_module", "importlib.import_module", "__import__")


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; a package is named without `__init__`."""
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        names[dotted.removesuffix(".__init__")] = path
    return names


MODULES = modules()


def imports(name: str) -> Iterator[tuple[str, int]]:
    """Dotted names that a module imports, by statement or by name, with line numbers; `from a import b` gives `a.b` and `a`."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # text that is printed as code
            yield from ((found, node.lineno) for found in PRINTED.findall(node.value))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME and isinstance(node.args[0], ast.Constant):
            yield node.args[0].value, node.lineno
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*anchor, *([node.module] if node.module else [])])
            yield base, node.lineno
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def room(name: str) -> str:
    """The folder or top-level module that a dotted name belongs to."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@pytest.mark.parametrize("name", MODULES)
def test_stage_order(name: str) -> None:
    here = room(name)
    assert here in MAY_IMPORT, f"{here} is a new room: add it to MAY_IMPORT"
    allowed = MAY_IMPORT[here] | {here}
    for target, line in imports(name):
        if target.startswith("pycompiler."):
            assert room(target) in allowed, f"{MODULES[name]}:{line} imports {target}; {here} may import {allowed}"


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def runtime_imports(name: str) -> Iterator[str]:
    """As `imports`, without blocks under TYPE_CHECKING, which never run."""
    skip = {
        child.lineno
        for node in ast.walk(ast.parse(MODULES[name].read_text()))
        if is_type_checking(node)
        for child in ast.walk(node)
        if isinstance(child, (ast.Import, ast.ImportFrom))
    }
    yield from (target for target, line in imports(name) if line not in skip)


def test_no_import_cycle() -> None:
    """A module that is imported pulls in its packages' `__init__`, except for an `__init__` it lies in itself."""
    graph: dict[str, set[str]] = {}
    for name in MODULES:
        targets = {t for t in runtime_imports(name) if t in MODULES}
        # `from a.b import c` with c a module needs c, not what a/b/__init__ happens to hold
        needed = {t for t in targets if not any(o.startswith(t + ".") for o in targets)}
        graph[name] = {t for t in needed if t != name and not name.startswith(t + ".")}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        pytest.fail("import cycle: " + " -> ".join(e.args[1]))


def circles() -> list[set[str]]:
    """Sets of modules each of which names all others, directly or not, annotations counted."""
    graph = {}
    for name in MODULES:
        targets = {t for t, _ in imports(name) if t in MODULES}
        graph[name] = {
            t for t in targets if t not in ("pycompiler", name) and not any(o.startswith(t + ".") for o in targets)
        }
    reached: dict[str, set[str]] = {}
    for name in graph:
        found, waiting = set[str](), [name]
        while waiting:
            new = graph[waiting.pop()] - found
            found |= new
            waiting += new
        reached[name] = found
    found = {frozenset(m for m in reached[n] if n in reached[m]) for n in graph}
    return [set(circle) for circle in found if circle]


def test_modules_that_name_each_other_are_no_more() -> None:
    """Values and what they ask stand in one circle (`values/interface.py`), for annotations only.  No other, and no larger
    (but where a file of the circle is taken apart: lists, keys, dicts and sets stood in one, objects with their dicts and
    with what is not looked into in another)."""
    [circle] = circles()
    assert all(name.startswith("pycompiler.capture.") for name in circle)
    assert len(circle) <= 26, sorted(circle)


@pytest.mark.parametrize("name", MODULES)
def test_nothing_of_the_peers_compiler(name: str) -> None:
    for target, line in imports(name):
        assert not any(target == p or target.startswith(p + ".") for p in PEER), f"{MODULES[name]}:{line}: {target}"
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            seen = any(text == p or text.startswith(p + ".") for p in PEER)
            assert not seen, f"{MODULES[name]}:{node.lineno} reaches {text}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.compile":
            pytest.fail(f"{MODULES[name]}:{node.lineno} calls torch.compile")


VALUES = "pycompiler.capture.values"
UNDER_VALUES = ("pycompiler.capture.breaks", "pycompiler.capture.polyfills", "pycompiler.ir", "pycompiler._native")


@pytest.mark.parametrize("name", [n for n in MODULES if n.startswith(VALUES)])
def test_values_stand_on_their_own(name: str) -> None:
    """They ask the capture through `values/interface.py`; what stands above them is named there, for annotations only."""
    seen = runtime_imports(name) if name == f"{VALUES}.interface" else (target for target, _ in imports(name))
    for target in seen:
        known = target.startswith((VALUES, *UNDER_VALUES)) or not target.startswith("pycompiler.")
        assert known or any(u.startswith(f"{target}.") for u in UNDER_VALUES), f"{MODULES[name]} imports {target}"


def test_unsafe_only_in_ffi() -> None:
    """`unsafe` code lies in `ffi/`; each block or impl has a SAFETY comment just before it."""
    use = re.compile(r"\bunsafe\s*(\{|impl\b)")
    for path in sorted((ROOT / "guards-rs" / "src").rglob("*.rs")):
        lines = path.read_text().splitlines()
        in_ffi = "ffi" in path.relative_to(ROOT / "guards-rs" / "src").parts
        for number, line in enumerate(lines, 1):
            code = line.split("//")[0]
            if re.search(r"\bunsafe\b(?!_code)", code) and "unsafe_code" not in code:
                assert in_ffi, f"{path}:{number}: unsafe outside of ffi/"
            if use.search(code):
                before = "\n".join(lines[max(0, number - 12) : number])
                assert "SAFETY" in before, f"{path}:{number}: unsafe without a SAFETY comment"


def test_the_engine_names_nothing_of_the_peers_compiler() -> None:
    for path in sorted((ROOT / "guards-rs" / "src").rglob("*.rs")):
        assert not re.findall(rf'"(?:{"|".join(map(re.escape, PEER))})\b', rust_code(path)), path


def test_torch_libraries_are_opened_in_one_place() -> None:
    """Symbols of torch have one finder: guards and plans ask `ffi/torch.rs`."""
    sources = (ROOT / "guards-rs" / "src").rglob("*.rs")
    assert [p.name for p in sources if re.search(r'"lib(torch|c10)\w*\.so', rust_code(p))] == ["torch.rs"]


def rust_code(path: Path) -> str:
    """A Rust file without its comments."""
    return "\n".join(re.split(r"(?:^|\s)//", line)[0] for line in path.read_text().splitlines())


def test_the_engine_imports_nothing_of_the_package() -> None:
    """Python that it needs is handed in by `engine.py`, all of it, and nothing else."""
    for path in sorted((ROOT / "guards-rs" / "src").rglob("*.rs")):
        named = set(re.findall(r'"(pycompiler[\w.]*)', rust_code(path)))
        assert all(n.startswith("pycompiler._native") for n in named), (
            f"{path} names {named}: hand it in (`handed.rs`, `engine.py`)"
        )
    calls = [n for n in ast.walk(ast.parse((PACKAGE / "engine.py").read_text())) if isinstance(n, ast.Call)]
    [call] = [c for c in calls if ast.unparse(c.func) == "_native.hand_in"]
    assert [k.arg for k in call.keywords] == _native.handed_in()


def engine_uses(path: Path) -> set[str]:
    """The engine's modules that a Rust file names, by `use` or by path."""
    return set(re.findall(r"\bcrate::(\w+)", rust_code(path)))


def test_the_ground_floor_calls_nobody() -> None:
    """`ffi/` knows nothing of the engine above it: what it calls up is handed in by traits."""
    for path in sorted((ROOT / "guards-rs" / "src" / "ffi").rglob("*.rs")):
        assert engine_uses(path) <= {"ffi"}, f"{path} uses {engine_uses(path) - {'ffi'}}"


def test_the_walls_are_standing() -> None:
    """Guards the tests above against looking at nothing."""
    assert {"pycompiler.config", "pycompiler.ir.guards", "pycompiler.capture"} <= MODULES.keys()
    assert list((ROOT / "guards-rs" / "src" / "ffi").glob("*.rs"))
    assert {"ffi", "guard", "hook"} <= engine_uses(ROOT / "guards-rs" / "src" / "entry.rs")
    assert "pycompiler.errors" in {target for target, _ in imports("pycompiler.config")}
    printed = {target for target, _ in imports("pycompiler.codegen.triton.generate")}
    assert "pycompiler.codegen.triton.helpers" in printed
    assert "torch._C._dynamo.eval_frame" in {target for target, _ in imports("pycompiler.ir.peer")}
    assert "import(c" in rust_code(ROOT / "guards-rs" / "src" / "tensor_view.rs")


def test_dispatch_modes_have_one_base() -> None:
    """Each other one makes torch import its compiler at the mode's first call."""
    made = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "(TorchDispatchMode)" in path.read_text()
    ]
    assert made == ["ir/modes.py"]
