"""The programs of torch.compile's FAQ and troubleshooting pages, unchanged except for names of modules.

Each prints the output on its page, or `docs/documents.md` states the difference and its reason.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import config

PAGE = Path(__file__).parents[2] / "docs" / "documents.md"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Programs of the pages that other files run: their row in the table of differences -> the file.
ELSEWHERE = {
    "the debug directory": "tests/debug/test_directory.py",
    "minifier_launcher.py and repro.py": "tests/debug/test_minifier.py",
    "TORCHDYNAMO_DEBUG_FUNCTION": "tests/debug/test_debug_function.py",
    "a node of the debug format": "tests/debug/test_directory.py",
    "TORCHDYNAMO_DYNAMIC_SHAPES": "tests/public_api/test_config.py",
    "triton.cudagraphs": "tests/public_api/test_config.py",
    "fallback_random": "tests/public_api/test_config.py",
}

TOY = """
import torch
import pycompiler as dynamo
def toy_example(a, b):
    x = a / (torch.abs(a) + 1)
    print("woo")
    if b.sum() < 0:
        b = b * -1
    return x * b
"""
NUMPY = """
import torch
import numpy as np

@pycompiler.compile
def numpy_fn(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    return np.sum(X[:, :, None] * Y[:, None, :], axis=(-2, -1))

X = np.random.randn(1024, 64)
Y = np.random.randn(1024, 64)
Z = numpy_fn(X, Y)
assert isinstance(Z, np.ndarray)
assert np.allclose(Z, np.sum(X[:, :, None] * Y[:, None, :], axis=(-2, -1)))
"""


@dataclass(frozen=True)
class Program:
    text: str
    prints: tuple[str, ...] = ()  # the output on the page
    raises: type[Exception] | None = None


PROGRAMS: dict[str, Program] = {
    "explain": Program(
        TOY + "explanation = dynamo.explain(toy_example)(torch.randn(10), torch.randn(10).abs())\nprint(explanation)\n",
        (
            "woo",
            "Graph Count: 3",
            "Graph Break Count: 2",
            "Op Count: 5",
            "Break Reasons:",
            "  Break Reason 1:",
            "    Reason:",
            "    User Stack:",
            "      <FrameSummary file",
            "line 6 in toy_example>",
            "Ops per Graph:",
            "Out Guards:",
        ),
    ),
    "explain, four values": Program(
        TOY
        + "explanation, out_guards, graphs, ops_per_graph = dynamo.explain(toy_example, torch.randn(10), torch.randn(10))\n"
        "print(explanation)\n",
        (
            "produced 3 graphs, with 2 graph breaks and",
            "Break reasons:",
            "1. ",
            "2. ",
            'line 6, in toy_example\n    print("woo")',
        ),
    ),
    "explain, six values": Program(
        TOY
        + """
explanation, out_guards, graphs, ops_per_graph, break_reasons, explanation_verbose = (
    dynamo.explain(toy_example, torch.randn(10), torch.randn(10))
)
print(explanation_verbose)
""",
        ("produced 3 graphs, with 2 graph breaks and", "Break reasons:", "    if b.sum() < 0:"),
    ),
    "frozen": Program(
        TOY + "toy_example = pycompiler.compile(toy_example)\nfrozen_toy_example = dynamo.run(toy_example)\n"
        "frozen_toy_example(torch.randn(10), torch.randn(10))\nprint(pycompiler.counters(toy_example)['compiles'])\n",
        ("woo\n0",),
    ),
    "a tensor as a key": Program(
        """
import torch
import pycompiler as dynamo

def test_assertion_error():
    y = torch.ones(200, 200)
    z = {y: 5}
    return z

compiled_test_assertion_error = pycompiler.compile(test_assertion_error, backend="eager")
print(len(compiled_test_assertion_error()))
""",
        ("1",),
    ),
    "an operator that fails in the compiler": Program(
        """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(5)])

def test_backend_error():
    y = torch.ones(200, 200)
    x = torch.ones(200, 200)
    z = x + y
    a = torch.ops.aten._foobar(z)  # dummy function which errors
    return model(a)

compiled_test_backend_error = pycompiler.compile(test_backend_error, backend="inductor")
print(compiled_test_backend_error().shape)
""",
        ("torch.Size([200, 200])",),
    ),
    "a backend that fails": Program(
        """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(5)])
# toy compiler which fails if graph contains relu
def toy_compiler(gm: torch.fx.GraphModule, _):
    for node in gm.graph.nodes:
        if node.target == torch.relu:
            assert False
    return gm

def test_backend_error():
    y = torch.ones(200, 200)
    x = torch.ones(200, 200)
    z = x + y
    a = torch.relu(z)
    return model(a)

compiled_test_backend_error = pycompiler.compile(test_backend_error, backend=toy_compiler)
compiled_test_backend_error()
""",
        raises=AssertionError,
    ),
    "a model made inside": Program(
        """
import torch

@pycompiler.compile()
def test_model(x):
    model = torch.nn.Sequential(
        torch.nn.Linear(10, 10),
        torch.nn.LayerNorm(10),
        torch.nn.ReLU(),
    )
    return model(x)

y = test_model(torch.ones(10, 10))
print(y.shape)
""",
        ("torch.Size([10, 10])",),
    ),
    "grad inside": Program(
        """
import torch

def wrapper_fn(x):
    return torch.func.grad(lambda x: x.sin().sum())(x)

x = torch.randn(3, 3, 3)
grad_x = pycompiler.compile(wrapper_fn)(x)
print(torch.allclose(grad_x, x.cos()))
""",
        ("True",),
    ),
    "vmap inside": Program(
        """
import torch

def my_fn(x):
    return torch.vmap(lambda x: x.sum(1))(x)

x = torch.randn(3, 3, 3)
output = pycompiler.compile(my_fn)(x)
print(torch.allclose(output, x.sum(2)))
""",
        ("True",),
    ),
    "grad outside": Program(
        """
import torch

@pycompiler.compile
def f(x):
    return torch.sin(x)

def g(x):
    return torch.grad(f)(x)

x = torch.randn(2, 3)
g(x)
""",
        raises=AttributeError,
    ),
    "grad outside, of a sum": Program(
        """
import torch

@pycompiler.compile
def f(x):
    return torch.sin(x)

def g(x):
    return torch.func.grad(lambda x: f(x).sum())(x)

x = torch.randn(2, 3)
print(torch.allclose(g(x), x.cos()))
""",
        ("True",),
    ),
    "vmap inside, with a knob": Program(
        """
import torch

pycompiler.config.capture_func_transforms=True

def f(x):
    return torch.sin(x)

@pycompiler.compile
def g(x):
    return torch.vmap(f)(x)

x = torch.randn(2, 3)
print(torch.allclose(g(x), x.sin()))
""",
        ("True",),
    ),
    "allow_in_graph": Program(
        """
import torch

@pycompiler.compile
def f(x):
    return pycompiler.allow_in_graph(torch.vmap(torch.sum))(x)

x = torch.randn(2, 3)
print(torch.allclose(f(x), x.sum(1)))
""",
        ("True",),
    ),
    "vmap of a tuple": Program(
        """
import torch

def fn(x):
    x1, x2 = x
    return x1 + x2

def my_fn(x):
    return torch.func.vmap(fn)(x)

x1 = torch.randn(3, 3, 3)
x2 = torch.randn(3, 3, 3)
output = pycompiler.compile(my_fn, fullgraph=True)((x1, x2))
print(torch.equal(output, x1 + x2))
""",
        ("True",),
    ),
    "grad with a keyword": Program(
        """
import torch

def fn(x, y):
    return (x + y).sum()

def my_fn(x, y):
    return torch.func.grad(fn)(x, y=y)

x = torch.randn(3, 3)
y = torch.randn(3, 3)
output = pycompiler.compile(my_fn, fullgraph=True)(x, y)
print(torch.equal(output, torch.ones(3, 3)))
""",
        ("True",),
    ),
    "an effect under vmap": Program(
        """
import torch

some_list = []

def f(x, y):
    some_list.append(1)
    return x + y

def my_fn(x, y):
    return torch.func.vmap(f)(x, y)

x = torch.ones(2, 3)
y = torch.randn(2, 3)
output = pycompiler.compile(my_fn)(x, y)
print(torch.equal(output, x + y), some_list)
""",
        ("True [1]",),
    ),
    "strides under vmap": Program(
        """
import torch

def bad_fn(x):
    x.stride()
    return x

def my_fn(x):
    return torch.func.vmap(bad_fn)(x)

x = torch.randn(3, 3, 3)
output = pycompiler.compile(my_fn)(x)
print(torch.equal(output, x))
""",
        ("True",),
    ),
    "numpy": Program(NUMPY),
    "numpy on tensors": Program(
        """
import torch
import numpy as np

@pycompiler.compile
def numpy_fn(X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
    X, Y = X.numpy(), Y.numpy()
    Z = np.sum(X[:, :, None] * Y[:, None, :], axis=(-2, -1))
    return torch.from_numpy(Z)

X = torch.randn(1024, 64)
Y = torch.randn(1024, 64)
Z = numpy_fn(X, Y)
print(Z.shape)
""",
        ("torch.Size([1024])",),
    ),
    "some function": Program(
        """
import torch

def some_fun(x):
    return x.sin()

print(pycompiler.compile(some_fun)(torch.zeros(2)))
""",
        ("tensor([0., 0.])",),
    ),
    "fullgraph": Program(
        TOY
        + """
pycompiler.compile(toy_example, fullgraph=True, backend="aot_eager")(torch.randn(10), torch.randn(10))
""",
        raises=pycompiler.exc.Unsupported,
    ),
    "nopython": Program(
        TOY
        + """
pycompiler.compile(toy_example, nopython=True)(torch.randn(10), torch.randn(10))
""",
        raises=pycompiler.exc.Unsupported,
    ),
    "compile profiler": Program(
        """
import torch
from pycompiler.utils import CompileProfiler

prof = CompileProfiler()

def my_model(x=torch.ones(3)):
    return x + 1

profiler_model = pycompiler.compile(my_model, backend=prof)
profiler_model()
profiler_model(torch.ones(3, 3))
print(prof.report())
""",
        ("Compile Profiler Report", "my_model", "L['x']"),
    ),
    "compile profiler, in a context": Program(
        """
import torch
from pycompiler.utils import CompileProfiler

def my_model(x=torch.ones(3)):
    print("a break")
    return x + 1

with CompileProfiler() as prof:
    profiler_model = pycompiler.compile(my_model, backend=prof)
    profiler_model()
    print(prof.report())
""",
        ("my_model", "print"),
    ),
    "compile times": Program(
        """
import torch
pycompiler.compile(torch.sin)(torch.ones(3))
print(pycompiler.utils.compile_times())
""",
        ("Compile times (seconds):", "capture", "backend"),
    ),
    "cache size limit": Program(
        """
pycompiler.config.cache_size_limit = 3
print(pycompiler.config.recompile_limit)
""",
        ("3",),
    ),
    "numpy, differentiated": Program(
        """
import torch
import numpy as np

@pycompiler.compile(fullgraph=True)
@pycompiler.wrap_numpy
def numpy_fn(X, Y):
    return np.mean(np.sum(X[:, :, None] * Y[:, None, :], axis=(-2, -1)))

X = torch.randn(1024, 64, device=DEVICE, requires_grad=True)
Y = torch.randn(1024, 64, device=DEVICE)
Z = numpy_fn(X, Y)
assert isinstance(Z, torch.Tensor)
Z.backward()
# X.grad now holds the gradient of the computation
print(torch.allclose(X.grad, (Y.sum(1) / 1024)[:, None].expand(1024, 64), atol=1e-5))
""",
        ("True",),
    ),
    "numpy, wrapped": Program(
        """
import torch
import numpy as np

@pycompiler.compile(fullgraph=True)
@pycompiler.wrap_numpy
def numpy_fn(X, Y):
    return np.sum(X[:, :, None] * Y[:, None, :], axis=(-2, -1))

X = torch.randn(1024, 64, device=DEVICE)
Y = torch.randn(1024, 64, device=DEVICE)
Z = numpy_fn(X, Y)
assert isinstance(Z, torch.Tensor)
assert Z.device.type == DEVICE
print(torch.allclose(Z, X.sum(1) * Y.sum(1), atol=1e-3))
""",
        ("True",),
    ),
    "numpy, wrapped, with a break": Program(
        """
import torch
import numpy as np

@pycompiler.compile
@pycompiler.wrap_numpy
def numpy_fn(X, Y):
    prod = X[:, :, None] * Y[:, None, :]
    print("oops, a graph break!")
    return np.sum(prod, axis=(-2, -1))

X = torch.randn(1024, 64, device=DEVICE)
Y = torch.randn(1024, 64, device=DEVICE)

with torch.device(DEVICE):
    Z = numpy_fn(X, Y)
assert isinstance(Z, torch.Tensor)
assert Z.device.type == DEVICE
print(torch.allclose(Z, X.sum(1) * Y.sum(1), atol=1e-3))
""",
        ("oops, a graph break!\nTrue",),
    ),
    "numpy on a device": Program(
        """
import torch
import numpy as np

@pycompiler.compile
def numpy_fn(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    return np.sum(X[:, :, None] * Y[:, None, :], axis=(-2, -1))

X = np.random.randn(1024, 64)
Y = np.random.randn(1024, 64)
with torch.device(DEVICE):
    Z = numpy_fn(X, Y)
assert isinstance(Z, np.ndarray)
print(np.allclose(Z, X.sum(1) * Y.sum(1)))
""",
        ("True",),
    ),
    "numpy alone": Program(
        """
import numpy as np
from pycompiler import config
config.trace_numpy = False

@pycompiler.compile
def numpy_fn(X):
    return np.sum(X, axis=-1)

print(numpy_fn(np.ones((2, 3))))
""",
        ("[3. 3.]",),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    program, out = PROGRAMS[name], io.StringIO()
    filename = f"<document {name}>"
    linecache.cache[filename] = (len(program.text), None, program.text.splitlines(keepends=True), filename)
    torch.manual_seed(0)
    raised: Any = pytest.raises(program.raises) if program.raises else contextlib.nullcontext()
    with contextlib.redirect_stdout(out), raised, config.patch(config.snapshot()):  # programs change the configuration
        exec(compile(program.text, filename, "exec"), {"pycompiler": pycompiler, "DEVICE": DEVICE})
    for text in program.prints:
        assert text in out.getvalue()


def test_differences_are_of_programs() -> None:
    """The page has a row for each program that differs, and no row for other names used here."""
    rows = re.findall(r"^\| `?(.*?)`? \| (.+) \|$", PAGE.read_text(), re.M)[1:]
    named = [name for name, _ in rows if name in PROGRAMS]
    assert {"explain", "a tensor as a key", "grad outside", "vmap of a tuple"} <= set(named)
    assert len(named) == len(set(named))
    unknown = {name for name, _ in rows} - PROGRAMS.keys() - ELSEWHERE.keys() - {"---"}
    assert not unknown
    for path in ELSEWHERE.values():
        assert (PAGE.parents[1] / path).exists(), path
