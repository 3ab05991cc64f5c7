"""The programs of torch.compile's FAQ and troubleshooting pages, as written but for names of modules.

Each prints what its page says, or its row says what differs here and why.
"""

from __future__ import annotations

import contextlib
import io
import linecache
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import pycompiler

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
    prints: tuple[str, ...] = ()  # what the page says
    raises: type[Exception] | None = None
    differs: str = ""


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
        differs="The words of the reasons, each with a hint: no class of the compiler's own is named. After a branch of one side (b >= 0).",
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
        differs="It begins with the name of this compiler, and counts 5 or 6 calls of the one branch that ran.",
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
        differs="No WON'T CONVERT: a tensor is a key like any object, or breaks the graph.",
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

compiled_test_backend_error = pycompiler.compile(test_backend_error, backend="native")
print(compiled_test_backend_error().shape)
""",
        ("torch.Size([200, 200])",),
        differs="No error: an operator without a lowering runs as ATen's kernel.",
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
    return torch.func.grad(lambda x: f(x).sum())(x)

x = torch.randn(2, 3)
print(torch.allclose(g(x), x.cos()))
""",
        ("True",),
        differs="The page writes torch.grad, which torch does not have, of a result that is no scalar.",
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
        differs="The page says that this runs eagerly; it is one graph here.",
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
        differs="The page says that this runs eagerly; it is one graph here.",
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
        differs="On the host: there is no GPU that NumPy's calls are moved to.",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    program, out = PROGRAMS[name], io.StringIO()
    filename = f"<document {name}>"
    linecache.cache[filename] = (len(program.text), None, program.text.splitlines(keepends=True), filename)
    torch.manual_seed(0)
    raised: Any = pytest.raises(program.raises) if program.raises else contextlib.nullcontext()
    with contextlib.redirect_stdout(out), raised:
        exec(compile(program.text, filename, "exec"), {"pycompiler": pycompiler})
    for text in program.prints:
        assert text in out.getvalue()
