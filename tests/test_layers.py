"""The layer rules: stage order, no import cycle, no part of torch.compile, `unsafe` only where it is allowed.

Every import statement counts, function-local and `TYPE_CHECKING` ones too, and imports in strings that are printed
as code.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from pycompiler import _native

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.whole
PACKAGE = ROOT / "pycompiler"

DATA = {"ir", "operators", "symbolic", "torch_compat"}  # packages that every stage may import
BASE = DATA | {"config", "errors", "logs", "_native"}
STAGES = {"capture", "autograd", "lowering", "scheduling", "codegen", "runtime"}
# folder or module of the package -> its allowed imports besides itself
MAY_IMPORT: dict[str, set[str]] = {
    "errors": {"ir"},  # UserFrame, for annotations only
    "config": {"errors"},
    "torch_logs": set(),
    "logs": {"errors", "torch_logs"},
    **{room: DATA | {"errors"} for room in DATA},
    "kernels": set(),  # files that generated code includes and imports
    **{stage: BASE for stage in STAGES},
    "codegen": BASE | {"kernels"},
    "backends": BASE,  # a registry; pipeline registers the compilers that it composes
    "progress": {"config", "ir", "torch_compat"},
    "background": {"config", "logs"} | DATA,
    "regions": BASE,
    "graphs": BASE | {"lowering", "scheduling", "codegen", "runtime", "progress"},
    "pipeline": BASE | {"capture", "autograd", "background", "backends", "graphs", "progress", "regions"},
    "artefacts": BASE | {"capture", "autograd", "runtime", "pipeline", "regions", "wrapping"},  # their data, in a file
    "wrapping": BASE | {"pipeline"},
    "api": BASE | {"artefacts", "wrapping", "pipeline", "background", "backends"},
    "precompile": {"api", "artefacts", "config", "errors", "wrapping"},
    "engine": BASE | {"pipeline", "runtime"},  # Python that the engine receives
    "exc": {"errors"},
    "absent_names": set(),
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
    },  # prints the records of these packages
    "utils": {"ir", "debug"},  # names under which the documents look for these packages' functions
    "__main__": {"debug"},
    "__init__": BASE | {"absent_names", "api", "backends", "debug", "engine", "exc", "precompile", "utils"},
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
BY_NAME = ("import_module", "__import__")  # also as an attribute: `importlib.import_module`


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; a package is named without `__init__`."""
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        names[dotted.removesuffix(".__init__")] = path
    return names


MODULES = modules()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@functools.cache
def imports(name: str) -> tuple[tuple[str, int], ...]:
    return tuple(_imports(name))


def _imports(name: str) -> Iterator[tuple[str, int]]:
    """Dotted names that a module imports, by statement or by name, with line numbers; `from a import b` gives `a.b`
    and `a`."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # a string that is printed as code
            yield from ((found, node.lineno) for found in PRINTED.findall(node.value))
        if isinstance(node, ast.Call) and name_of(node.func) in BY_NAME and isinstance(node.args[0], ast.Constant):
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


def name_of(called: ast.expr) -> str | None:
    """The last name of `f` or `a.b.f`."""
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else None


def room(name: str) -> str:
    """The folder or top-level module of a dotted name."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_stage_order() -> None:
    for name in MODULES:
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
        for node in ast.walk(tree_of(MODULES[name]))
        if is_type_checking(node)
        for child in ast.walk(node)
        if isinstance(child, (ast.Import, ast.ImportFrom))
    }
    yield from (target for target, line in imports(name) if line not in skip)


def test_no_import_cycle() -> None:
    """An imported module also imports the `__init__` of its packages, except for the `__init__` that imports it."""
    graph: dict[str, set[str]] = {}
    for name in MODULES:
        targets = {t for t in runtime_imports(name) if t in MODULES}
        # `from a.b import c` with a module c needs c, not the other contents of a/b/__init__
        needed = {t for t in targets if not any(o.startswith(t + ".") for o in targets)}
        graph[name] = {t for t in needed if t != name and not name.startswith(t + ".")}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        pytest.fail("import cycle: " + " -> ".join(e.args[1]))


# Protocol -> the module that implements it. A module that uses a Protocol reaches its implementer at run time,
# without an import.
IMPLEMENTERS = {
    "pycompiler.capture.values.interface": "pycompiler.capture.interpreter.context",
    "pycompiler.pipeline.interface": "pycompiler.pipeline.family",
}


def strongly_connected(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of more than one module, in which each module reaches all others."""
    reached: dict[str, set[str]] = {}
    for name in graph:
        found, waiting = set[str](), [name]
        while waiting:
            new = graph[waiting.pop()] - found
            found |= new
            waiting += new
        reached[name] = found
    sets = {frozenset(m for m in reached[n] if n in reached[m]) for n in graph}
    return sorted((set(circle) for circle in sets if len(circle) > 1), key=len)


def test_circles_of_modules_do_not_grow() -> None:
    """With annotations and Protocols two cycles exist: capture's values with their interface's implementers, and parts
    of the pipeline.

    The numbers may only fall. The only cycle without Protocols lies inside of capture and has at most 26 modules.
    """
    graph = {}
    for name in MODULES:
        targets = {t for t, _ in imports(name) if t in MODULES}
        graph[name] = {
            t for t in targets if t not in ("pycompiler", name) and not any(o.startswith(t + ".") for o in targets)
        }
    [imported] = strongly_connected(graph)
    assert all(name.startswith("pycompiler.capture.") for name in imported)
    assert len(imported) <= 26, sorted(imported)
    for interface, implementer in IMPLEMENTERS.items():
        graph[interface].add(implementer)
    pipeline, capture = strongly_connected(graph)
    assert all(name.startswith("pycompiler.pipeline.") for name in pipeline) and len(pipeline) <= 8, sorted(pipeline)
    assert all(name.startswith("pycompiler.capture.") for name in capture) and len(capture) <= 65, sorted(capture)


def test_nothing_of_the_peers_compiler() -> None:
    for name in MODULES:
        for target, line in imports(name):
            assert not any(target == p or target.startswith(p + ".") for p in PEER), f"{MODULES[name]}:{line}: {target}"
        for node in ast.walk(tree_of(MODULES[name])):
            if isinstance(node, ast.Attribute):
                text = ast.unparse(node)
                seen = any(text == p or text.startswith(p + ".") for p in PEER)
                assert not seen, f"{MODULES[name]}:{node.lineno} reaches {text}"
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.compile":
                pytest.fail(f"{MODULES[name]}:{node.lineno} calls torch.compile")


VALUES = "pycompiler.capture.values"
UNDER_VALUES = (
    "pycompiler.capture.breaks",
    "pycompiler.capture.semantics.polyfills",
    "pycompiler._native",
    *(f"pycompiler.{room}" for room in sorted(DATA)),
)


def test_values_stand_on_their_own() -> None:
    """Values query the capture through `values/interface.py`, which names the modules above them for annotations only."""
    for name in [n for n in MODULES if n.startswith(VALUES)]:
        seen = runtime_imports(name) if name == f"{VALUES}.interface" else (target for target, _ in imports(name))
        for target in seen:
            known = target.startswith((VALUES, *UNDER_VALUES)) or not target.startswith("pycompiler.")
            assert known or any(u.startswith(f"{target}.") for u in UNDER_VALUES), f"{MODULES[name]} imports {target}"


def test_modules_that_are_named_in_strings_exist() -> None:
    """Below folders of the package: a string such as "pycompiler.autograd." or "pycompiler.capture.breaks" must follow the module that it names."""
    for name in MODULES:
        for node in ast.walk(tree_of(MODULES[name])):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(r"pycompiler(\.[a-z_]\w*)+\.?", node.value):
                    named = node.value.rstrip(".")
                    is_ours = (PACKAGE / room(named)).is_dir()  # others are names of logs, operators and functions
                    assert named in MODULES or not is_ours, f"{MODULES[name]}:{node.lineno}: no module {named}"


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
    """Symbols of torch have one finder: guards and plans use `ffi/torch.rs`."""
    sources = (ROOT / "guards-rs" / "src").rglob("*.rs")
    assert [p.name for p in sources if re.search(r'"lib(torch|c10)\w*\.so', rust_code(p))] == ["torch.rs"]


def rust_code(path: Path) -> str:
    """A Rust file without its comments."""
    return "\n".join(re.split(r"(?:^|\s)//", line)[0] for line in path.read_text().splitlines())


def test_the_engine_imports_nothing_of_the_package() -> None:
    """`engine.py` passes all Python that the engine needs, and nothing else."""
    for path in sorted((ROOT / "guards-rs" / "src").rglob("*.rs")):
        named = set(re.findall(r'"(pycompiler[\w.]*)', rust_code(path)))
        assert all(n.startswith("pycompiler._native") for n in named), (
            f"{path} names {named}: hand it in (`registered_object.rs`, `engine.py`)"
        )
    calls = [n for n in ast.walk(ast.parse((PACKAGE / "engine.py").read_text())) if isinstance(n, ast.Call)]
    [call] = [c for c in calls if ast.unparse(c.func) == "_native.hand_in"]
    assert [k.arg for k in call.keywords] == _native.handed_in()


def engine_uses(path: Path) -> set[str]:
    """The engine's modules that a Rust file names, by `use` or by path."""
    return set(re.findall(r"\bcrate::(\w+)", rust_code(path)))


def engine_graph() -> dict[str, set[str]]:
    """Each module of the engine, and the modules that it names by `crate::` or `super::`."""
    root = ROOT / "guards-rs" / "src"
    files = {"::".join(p.relative_to(root).with_suffix("").parts).removesuffix("::mod"): p for p in root.rglob("*.rs")}

    def module_of(path: str) -> str:
        while path and path not in files:
            path = path.rpartition("::")[0]
        return path

    graph = {}
    for name, path in files.items():
        code, parent = rust_code(path), name.rpartition("::")[0]
        named = {module_of(found) for found in re.findall(r"\bcrate::(\w+(?:::\w+)*)", code)}
        named |= {module_of(f"{parent}::{found}") for found in re.findall(r"\bsuper::(\w+(?:::\w+)*)", code)}
        graph[name] = named - {"", name, parent}  # a parent holds its parts
    return graph


def test_circles_of_the_engine_are_small() -> None:
    circles = strongly_connected(engine_graph())
    assert circles and all(len(circle) <= 5 for circle in circles), [sorted(circle) for circle in circles]


def test_the_ground_floor_calls_nobody() -> None:
    """`ffi/` uses no engine module above it: it calls upwards through traits."""
    for path in sorted((ROOT / "guards-rs" / "src" / "ffi").rglob("*.rs")):
        assert engine_uses(path) <= {"ffi"}, f"{path} uses {engine_uses(path) - {'ffi'}}"


def test_the_walls_are_standing() -> None:
    """Guard against tests above that check an empty set."""
    assert {"pycompiler.config", "pycompiler.ir.guards", "pycompiler.capture"} <= MODULES.keys()
    assert list((ROOT / "guards-rs" / "src" / "ffi").glob("*.rs"))
    assert {"ffi", "guard", "hook"} <= engine_uses(ROOT / "guards-rs" / "src" / "entry.rs")
    assert "pycompiler.errors" in {target for target, _ in imports("pycompiler.config")}
    printed = {target for target, _ in imports("pycompiler.codegen.triton.generate")}
    assert "pycompiler.kernels.triton.helpers" in printed
    assert "torch._C._dynamo.eval_frame" in {target for target, _ in imports("pycompiler.torch_compat.torch_compile")}
    assert "import(c" in rust_code(ROOT / "guards-rs" / "src" / "tensor_view.rs")


def test_dispatch_modes_have_one_base() -> None:
    """Quirk of torch: any other dispatch mode makes torch import its compiler at the mode's first call."""
    made = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "(TorchDispatchMode)" in path.read_text()
    ]
    assert made == ["torch_compat/dispatch_modes.py"]
