"""Programs in which faults show. `pycompiler` is the compiler; for torch's tools the name becomes `torch`."""

OPERATORS = """
import torch, pycompiler

@pycompiler.compile
def program(x):
    y = (x * 2).exp()
    z = y.flip(0)
    z = z + x.sin()
    return torch.nn.functional.silu(z.roll(1)) - 1

program(torch.linspace(-1, 1, 12).reshape(3, 4))
"""

ROWS = """
import torch, pycompiler

@pycompiler.compile
def program(x):
    y = x + 1
    return y / y.sum(-1, keepdim=True)

program(torch.linspace(-1, 1, 12).reshape(3, 4))
"""

WRITES = """
import torch, pycompiler

@pycompiler.compile
def program(x, total):
    total.add_(x.sum())
    return x * 3

program(torch.ones(3), torch.zeros(()))
"""

STORES = """
import torch, pycompiler

@pycompiler.compile
def program(x, state):
    state.copy_(state.flip(0) + x)
    return x * 3

program(torch.ones(64), torch.arange(64.0))
"""

MEMORY = """
import torch, pycompiler

@pycompiler.compile
def program(x):
    rows = x.exp().sum(1)
    columns = x.cos().sum(0)
    both = rows.softmax(0) * columns.softmax(0)
    return both.cumsum(0) + rows.flip(0) * columns.flip(0)

program(torch.rand(64, 64))
"""

ONE = """
import torch, pycompiler

@pycompiler.compile
def program(x):
    return x.sin()

program(torch.ones(3))
"""

TWO = """
import torch, pycompiler

@pycompiler.compile
def first(x):
    return x.sin()

@pycompiler.compile
def second(x):
    return x.cos()

first(torch.ones(3))
second(torch.ones(3))
"""

ALIKE = """
import torch, pycompiler

def scaled(by):
    return pycompiler.compile(lambda x: (x * by).sin())

twice, thrice = scaled(2.0), scaled(3.0)
twice(torch.ones(3))
thrice(torch.ones(3))
"""

GRADIENT = """
import torch, pycompiler

@pycompiler.compile
def program(x):
    return x.exp().sin().sigmoid()

program(torch.ones(3, requires_grad=True)).sum().backward()
"""

DROPS = """
import torch, pycompiler

@pycompiler.compile
def program(x):
    return torch.nn.functional.dropout(x * 2)

program(torch.ones(100))
"""

VIEW = """
import torch, pycompiler

@pycompiler.compile
def program(x):
    return x[1:], x + 1

x = torch.ones(3)
view, _ = program(x)
view.zero_()
assert x.tolist() == [1, 0, 0]
"""

DTYPES = """
import torch, pycompiler

@pycompiler.compile
def program(x):
    y = x.sin()
    return y + (1 if y.dtype is torch.float32 else 2)

x = torch.ones(3)
assert torch.equal(program(x), x.sin() + 1)
"""

STRIDES = """
import torch, pycompiler

@pycompiler.compile
def program(x):
    return x.t().sin()

program(torch.rand(3, 4))
"""

EFFECT = """
import torch, pycompiler

seen = []

@torch.library.custom_op("program::note", mutates_args=())
def note(x: torch.Tensor) -> None:
    seen.append(x.sum())

note.register_fake(lambda x: None)

@pycompiler.compile
def program(x):
    note(x)
    return x + 1

program(torch.ones(3))
assert len(seen) == 1
"""

BREAKS = """
import torch, pycompiler

@pycompiler.compile
def program(x, factor):
    y = x + 1
    print("a break")
    return (x - y) * factor

x = torch.zeros(3)
assert torch.equal(program(x, torch.tensor(2.0)), torch.full((3,), -2.0))
"""

ORDER = """
import logging, torch, pycompiler

seen = []
log = logging.getLogger("program")
log.addHandler(type("Handler", (logging.Handler,), {"emit": lambda self, record: seen.append(record.msg)})())

@pycompiler.compile
def program(x):
    log.warning("first")
    log.warning("second")
    return x + 1

program(torch.ones(3))
assert seen == ["first", "second"]
"""

ERROR = """
import torch, pycompiler

@pycompiler.compile
def program(table, at):
    return table[at] + 1

try:
    program(torch.ones(3), torch.tensor([1, 5]))
except IndexError as error:
    assert "index 5 is out of bounds" in str(error), error
"""

NUMBERS = """
import torch, pycompiler

@pycompiler.compile
def program(x, mode):
    if mode == "add":
        return x + 1
    return x - 1

x = torch.ones(3)
program(x, "add")
assert torch.equal(program(x, "subtract"), x - 1)
"""

GLOBALS = """
import torch, pycompiler

factor = 2

def helper(x):
    return x * factor

@pycompiler.compile
def other(x):
    return x + 1

@pycompiler.compile
def program(x):
    return helper(x).cos()

x = torch.ones(3)
program(other(x))
factor = 3
assert torch.equal(program(x), (x * 3).cos())
"""

SIZES = """
import torch, pycompiler

@pycompiler.compile(dynamic=True)
def program(x):
    if x.shape[0] > 5:
        return x + 1
    return x - 1

program(torch.ones(8))
assert torch.equal(program(torch.ones(3)), torch.zeros(3))
"""

CALLS = """
import torch, pycompiler

@pycompiler.compile
def program(x):
    return x + 1

for k in range(12):
    program(torch.full((3,), k))
"""

STORM = """
import torch, pycompiler

@pycompiler.compile
def program(x, mode):
    return x + len(mode)

for k in range(12):
    program(torch.ones(3), "m" * k)
"""

BRANCH = """
import torch, pycompiler

@pycompiler.compile
def program(x):
    if x.sum() > 0:
        return x + 1
    return x - 1

program(torch.ones(3))
"""

TABLE = """
import torch, pycompiler

@pycompiler.compile
def program(x, table):
    return x + list(table.values())[0] + x.shape[0]

table = {str(k): 1 for k in range(500)}
for _ in range(3):
    program(torch.ones(3), table)
"""

WORKER = """
import torch, pycompiler

@pycompiler.compile(background=True)
def program(x):
    return x + 1

program(torch.ones(3))
pycompiler.wait_for_compiles()
"""

MEMORY_OUT = """
import torch, pycompiler

@pycompiler.compile
def program(x):
    y = x + 1
    return y[:, None] * y[None, :]

program(torch.ones(1 << 24))
"""

ARTEFACT = """
import torch, pycompiler

def program(x):
    return x + 1

compiled = pycompiler.compile(program)
compiled(torch.ones(3))
pycompiler.save(compiled, "program.artefact")
with open("program.artefact", "r+b") as file:
    file.seek(2000)
    file.write(b"damaged")
pycompiler.load("program.artefact", program, trust=True)
"""

# A backend of the program's own that changes its graph, and is wrong for the second one.
OWN_BACKEND = """
import torch
import pycompiler


def no_relu(gm, inputs):
    for node in gm.graph.nodes:
        if node.target is torch.relu:
            node.target = torch.sigmoid
    gm.recompile()
    return gm.forward


def program(x):
    return torch.relu(x.sin() + 1).cos()


pycompiler.compile(lambda x: x + 1, backend=no_relu)(torch.ones(3))
pycompiler.compile(program, backend=no_relu)(torch.linspace(-2, 2, 4))
"""
