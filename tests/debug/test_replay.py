"""Recorded frames run alone elsewhere: values, identities and errors equal the program's."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import hashlib
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import __main__, config, debug
from pycompiler.debug import recording, replaying
from pycompiler.debug.freeze import Freezer, is_library
from pycompiler.debug.thaw import Missing, NotRecorded, Thaw
from pycompiler.errors import ArtefactError, InternalError
from pycompiler.lowering import LOWERINGS
from tests import children

ROOT = Path(pycompiler.__file__).parent.parent


# the codec ----------------------------------------------------------------------------------------------------------
class Kind(enum.Enum):
    UP = ("up", 1)
    DOWN = ("down", -1)

    def __init__(self, text: str, sign: int) -> None:
        self.sign = sign

    def turned(self) -> bool:
        return self is Kind.DOWN


@dataclasses.dataclass
class Options:
    scale: float
    kind: Kind = Kind.UP
    more: list[int] = dataclasses.field(default_factory=list)


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self) -> int: ...


class Square(Shape):
    __slots__ = ("side",)

    def __init__(self, side: int) -> None:
        self.side = side

    def area(self) -> int:
        return self.side**2


class Named(Square):
    count = 3

    @property
    def name(self) -> str:
        return f"{self.area()} {super().area()}"

    @classmethod
    def of(cls, side: int) -> Named:
        return cls(side)

    @staticmethod
    def twice(side: int) -> int:
        return 2 * side


Point = collections.namedtuple("Point", "x y")


class Items(list[int]):
    note = ""


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 5


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.tied = self.linear.weight
        self.register_buffer("total", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) @ self.tied + self.total


@functools.lru_cache(maxsize=4)
def cached(n: int) -> int:
    return n + 1


def round_trip(value: Any) -> tuple[Any, Freezer]:
    freezer = Freezer(1 << 20)
    token = freezer.value(value, "value")
    freezer.finish()
    return Thaw(freezer.records, freezer.fills).value(token), freezer


def gradient_of_double(cls: Any) -> list[float]:
    x = torch.ones(2, requires_grad=True)
    cls.apply(x).sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


def items() -> Items:
    made = Items([1, 2])
    made.note = "kept"
    return made


SEEN: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "plain": ((1, 2.5, "a", None, {"k": [1, {2}, frozenset({3})]}, slice(1, None), range(3), 1 << 80), lambda v: v),
    "enum": (Kind.DOWN, lambda v: (v.name, v.sign, v.turned(), type(v)(v.value) is v)),
    "enum of a library": (torch.nn.functional._Reduction, lambda v: v),
    "dataclass": (Options(2.0, Kind.DOWN, [3]), lambda v: (repr(v), v == type(v)(2.0, v.kind, [3]))),
    "slots": (Named(3), lambda v: (v.name, v.of(2).area(), v.twice(4), v.count, type(v).__mro__[1].__abstractmethods__)),
    "named tuple": (Point(1, 2), lambda v: (v.x, v[1], v._replace(x=5).x)),
    "list subclass": (items(), lambda v: (list(v), v.note, type(v).__name__)),
    "ordered": (collections.OrderedDict(a=1, b=2), lambda v: list(v.items())),
    "default": (collections.defaultdict(list, a=[1]), lambda v: (v["b"], dict(v))),
    "deque": (collections.deque([1, 2], maxlen=2), lambda v: (list(v), v.maxlen)),
    "partial": (functools.partial(Named.twice, side=4), lambda v: v()),
    "method": (Named(4).area, lambda v: v()),
    "cached": (cached, lambda v: (v(2), v.cache_info().maxsize)),
    "error": (ValueError("text", 3), lambda v: (type(v), v.args)),
    "operator": (torch.ops.aten.add.Tensor, lambda v: v),
    "torch's": ((torch.float16, torch.device("cpu"), torch.Size([2]), torch.strided, torch.relu, torch.Tensor.add), lambda v: v),
    "function": (lambda x, *, y=Options(3.0): x * y.scale + cached(1), lambda v: v(2)),
    "autograd function": (Double, gradient_of_double),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_values_come_back(name: str) -> None:
    value, look = SEEN[name]
    back, freezer = round_trip(value)
    assert look(back) == look(value)
    assert not freezer.missing and not freezer.remarks


def test_what_is_one_object_stays_one() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    base = torch.arange(6.0)
    held = {"ring": ring, "base": base, "view": base[2:4], "again": base, "leaf": torch.ones(2, requires_grad=True)}
    held["leaf"].grad = torch.full((2,), 7.0)
    back, _ = round_trip(held)
    assert back["ring"][1] is back["ring"]
    assert back["again"] is back["base"]
    back["base"][2] = 100
    assert back["view"].tolist() == [100.0, 3.0] and base[2] == 2
    assert back["leaf"].is_leaf and back["leaf"].requires_grad and back["leaf"].grad.tolist() == [7.0, 7.0]


def test_a_module_with_tied_parameters() -> None:
    block = Block()
    back, freezer = round_trip(block)
    assert type(back) is not Block and isinstance(back, torch.nn.Module)
    assert back.tied is back.linear.weight and isinstance(back.tied, torch.nn.Parameter)
    assert set(back.state_dict()) == set(block.state_dict())
    x = torch.randn(3, 2)
    assert torch.equal(back(x), block(x))
    assert not freezer.missing


def test_cells_are_shared_between_functions() -> None:
    def pair() -> tuple[Any, Any]:
        n = 0

        def add() -> None:
            nonlocal n
            n += 1

        return add, lambda: n

    (add, look), _ = round_trip(pair())
    add()
    add()
    assert look() == 2


def test_what_cannot_be_written_is_listed_and_says_so() -> None:
    (lock, pair), freezer = round_trip((threading.Lock(), {"generator": (n for n in "ab")}))
    assert [text.partition(":")[0] for text in freezer.missing] == ["value[0]", "value[1]['generator']"]
    assert isinstance(lock, Missing)
    with pytest.raises(NotRecorded, match=r"value\[0\]: an object of _thread.lock \(the program reads its acquire"):
        lock.acquire()
    with pytest.raises(NotRecorded, match="the program calls it"):
        pair["generator"]()


def test_large_tensors_are_sizes() -> None:
    freezer = Freezer(100)
    token = freezer.values((torch.ones(4), torch.ones(100), torch.zeros(4)), "x")
    back = Thaw(freezer.records, freezer.fills).values(token)
    assert [tuple(t.shape) for t in back] == [(4,), (100,), (4,)]
    assert back[0].eq(1).all() and back[2].eq(0).all() and not back[1].eq(1).any()
    assert freezer.remarks == ["x[1]: 400 bytes of data were left out; random numbers stand for them"]


def test_whose_code_is_named() -> None:
    assert is_library("torch.nn") and is_library("json") and is_library("pytest")
    assert not is_library(__name__)


# files ------------------------------------------------------------------------------------------------------------------
SCALE = 3.0


def program(x: torch.Tensor, *rest: int, by: float = 2.0, **more: int) -> torch.Tensor:
    y = (x * by).sin()
    return y * SCALE + sum(rest) + more["z"]


def recorded(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.rec"))


@contextlib.contextmanager
def recording_in(folder: Path) -> Any:
    recording._recorder.seen.clear()
    with config.patch(replay_record_enabled=True, debug_dir_root=str(folder), share_regions=False):
        yield


def wrong_rule(*_: Any) -> Any:
    raise ArithmeticError("no rule today")


def test_a_bug_of_ours_is_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOWERINGS, torch.ops.aten.sin.default, wrong_rule)
    x = torch.linspace(0, 1, 4)
    with recording_in(tmp_path), config.patch(raise_internal_errors=True):
        compiled = pycompiler.compile(program, dynamic=False)
        for _ in range(2):
            with pytest.raises(InternalError, match="no rule today") as caught:
                compiled(x, 1, 2, by=4.0, z=5)
            assert caught.value.__cause__ is not None
        pycompiler.compile(lambda x: x + 1)(x)
    [file] = recorded(tmp_path)
    frame = replaying.read(file)
    assert frame.header["function"] == "program" and "no rule today" in frame.header["error"]
    assert not frame.header["missing"]
    assert frame.settings["dynamic"] is False and frame.settings["backend"] == "native"
    with pytest.raises(InternalError, match="no rule today"):
        debug.replay(file)
    expected = program(x, 1, 2, by=4.0, z=5)
    assert torch.equal(debug.replay(file, eager=True), expected)
    monkeypatch.undo()
    torch.testing.assert_close(debug.replay(file), expected)


def test_tensors_beyond_the_limit_are_recorded_without_their_data(tmp_path: Path) -> None:
    x = torch.linspace(1, 2, 4)
    for limit, kept in ((1 << 10, True), (0, False)):
        with config.patch(replay_record_limit=limit):
            debug.record(tmp_path / "a.rec", lambda x: x * 1, x)
        found = debug.replay(tmp_path / "a.rec", eager=True)
        assert found.shape == x.shape and torch.equal(found, x) is kept


def test_breaks_under_fullgraph_and_frames_that_break(tmp_path: Path) -> None:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        print(end="")
        if x.sum() > 0:
            return x + 1
        return x

    with recording_in(tmp_path):
        pycompiler.compile(breaks)(torch.ones(2))
        assert not recorded(tmp_path)  # a break is no failure
        with pytest.raises(pycompiler.exc.Unsupported, match="graph break"):
            pycompiler.compile(breaks, fullgraph=True)(torch.ones(2))
    [file] = recorded(tmp_path)
    with pytest.raises(pycompiler.exc.Unsupported, match="graph break"):
        debug.replay(file)


@pytest.mark.captures_nothing("a call is recorded, and run eagerly")
def test_the_state_of_a_call_comes_with_it(tmp_path: Path) -> None:
    def draws(x: torch.Tensor) -> tuple[torch.Tensor, bool, torch.dtype]:
        return torch.rand(3) + x, torch.is_grad_enabled(), torch.get_default_dtype()

    torch.manual_seed(11)
    with torch.no_grad():
        debug.record(tmp_path / "a.rec", pycompiler.compile(draws), torch.zeros(3))
    numbers = torch.rand(3)
    before = torch.get_rng_state()
    found, grad, dtype = debug.replay(tmp_path / "a.rec", eager=True)
    assert torch.equal(found, numbers) and grad is False and dtype is torch.float32
    assert torch.equal(torch.get_rng_state(), before)


def test_files_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.rec"
    debug.record(path, program, torch.ones(2), z=1)
    data = path.read_bytes()
    (tmp_path / "text.rec").write_text("no record")
    (tmp_path / "cut.rec").write_bytes(data[:-5])
    for name, why in (("text", "is not a replay record"), ("cut", "is damaged"), ("none", "cannot be read")):
        with pytest.raises(ArtefactError, match=why):
            debug.replay(tmp_path / f"{name}.rec")
        assert __main__.main(["replay", str(tmp_path / f"{name}.rec")]) == 2
        assert why in capsys.readouterr().err
    facts = recording.versions()
    recording_facts = {**facts, "bytecode": "00000000", "python": "cpython 2.7"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "versions", lambda: recording_facts)
        debug.record(path, program, torch.ones(2), z=1)
    with pytest.raises(ArtefactError, match=r"holds bytecode of cpython 2\.7"):
        debug.replay(path)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int) -> None:
    path = tmp_path / "a.rec"
    before = os.umask(0)
    try:
        debug.record(path, program, torch.ones(2), z=1)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    found = debug.replay(path)
    path.chmod(mode)
    for arguments in ([], ["--show"], ["--eager"]):
        assert __main__.main(["replay", str(path), *arguments]) == 2
        assert "may be written by others" in capsys.readouterr().err
    with pytest.raises(ArtefactError, match="a record is a program: replay it with --trust"):
        debug.replay(path)
    assert torch.equal(debug.replay(path, trust=True), found)
    assert __main__.main(["replay", str(path), "--trust"]) == 0


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.rec")
    with pytest.raises(ArtefactError, match="is not a plain file"):
        debug.replay(tmp_path / "a.rec", trust=True)


def odd_headers() -> dict[str, Any]:
    facts = {**recording.versions(), "function": "f", "place": "", "error": None, "missing": [], "remarks": []}
    return {
        "not a table": [1],
        "no text function": {**facts, "function": 3},
        "no text bytecode": {k: v for k, v in facts.items() if k != "bytecode"},
        "no list of texts missing": {**facts, "missing": [None]},
        "no list of texts remarks": {**facts, "remarks": "x"},
        "no text error": {**facts, "error": {}},
    }


@pytest.mark.parametrize("why", odd_headers())
def test_odd_headers_are_refused(tmp_path: Path, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps(odd_headers()[why]).encode()
    refused(tmp_path, recording.LENGTH.pack(len(text)) + text, f"its header .*{why}", capsys)


@pytest.mark.parametrize("rest", [recording.LENGTH.pack(1 << 62), recording.LENGTH.pack(10**5) + b"[" * 10**5])
def test_headers_that_are_no_json_are_refused(tmp_path: Path, rest: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    refused(tmp_path, rest, "is damaged", capsys)


def refused(tmp_path: Path, rest: bytes, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.rec"
    path.write_bytes(recording.MAGIC + hashlib.sha256(rest).digest() + rest)
    for arguments in ([], ["--show"]):
        assert __main__.main(["replay", str(path), *arguments]) == 2
        assert re.search(why, capsys.readouterr().err)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.rec"
    debug.record(path, program, torch.ones(2), z=1)
    assert __main__.main(["replay", "--show", str(path)]) == 0
    assert "frame program (" in capsys.readouterr().out
    assert __main__.main(["replay", "--backend", "eager", str(path)]) == 0
    assert "the result: tensor([3.7279, 3.7279])" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("p by\nn\np y.shape\nc\n"))
    handler = signal.getsignal(signal.SIGINT)
    assert __main__.main(["replay", "--eager", "--pdb", str(path)]) == 0
    out = capsys.readouterr().out
    assert "y = (x * by).sin()" in out and "2.0" in out and "the result" in out
    assert signal.getsignal(signal.SIGINT) is handler  # pdb's `continue` installs a handler of its own


def test_what_fails_while_it_is_written_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr(logging.getLogger("pycompiler"), "propagate", True)
    monkeypatch.setattr(recording, "freeze", wrong_rule)

    def backend(gm: Any, inputs: Any) -> Any:
        raise KeyError("backend")

    with recording_in(tmp_path), pytest.raises(KeyError, match="backend"):
        pycompiler.compile(program, backend=backend)(torch.ones(2), z=1)
    assert "no replay record was written: ArithmeticError" in caplog.text


PROGRAM = """
    import torch, pycompiler
    import helper

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return helper.scaled(self.linear(x).relu())

    def backend(gm, inputs):
        if any("relu" in str(n.target) for n in gm.graph.nodes):
            raise ValueError(f"no relu in {helper.WHERE}")
        return gm

    torch.manual_seed(0)
    net = Net()
    x = torch.ones(4)
    torch.save(net(x), "expected.pt")
    try:
        pycompiler.compile(net, backend=backend)(x)
    except ValueError as error:
        print(error)
    """
HELPER = """
    WHERE = "helper"

    def scaled(x):
        import later
        return x * later.FACTOR
    """
ELSEWHERE = """
    import sys, torch, pycompiler.debug
    result = pycompiler.debug.replay(sys.argv[1], eager=True)
    assert torch.equal(result, torch.load(sys.argv[2])), result
    assert "helper" not in sys.modules and "later" not in sys.modules
    try:
        pycompiler.debug.replay(sys.argv[1])
    except ValueError as error:
        print(error)
    """


def test_in_another_process_from_another_folder(tmp_path: Path) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    away.mkdir()
    home.mkdir()
    for name, text in (("main", PROGRAM), ("helper", HELPER), ("later", "FACTOR = 2.5")):
        (home / f"{name}.py").write_text(textwrap.dedent(text))
    (away / "main.py").write_text(textwrap.dedent(ELSEWHERE))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": path, "PYCOMPILER_DEBUG_DIR": str(away), "TORCH_COMPILE_REPLAY_RECORD": "1"}
    command = [children.python(), "main.py"]
    out = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=True)
    assert out.stdout == "no relu in helper\n" and "Wrote a replay record to: " in out.stderr
    expected = shutil.move(home / "expected.pt", away / "expected.pt")
    shutil.rmtree(home)
    [file] = recorded(away)
    env["TORCH_COMPILE_REPLAY_RECORD"] = "0"
    done = subprocess.run([*command, file, expected], cwd=away, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "no relu in helper\n", done.stderr
