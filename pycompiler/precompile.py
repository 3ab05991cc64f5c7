"""torch's `torch.compiler.precompile` on the files of `save`: `capture` in one process, `load` in another.

In: a function, and calls of it.  Out: an artefact, and a function that runs its entries and never compiles.

Example:
    ```python
    def predict(model, x):
        return model(x).softmax(-1)

    model, x = torch.nn.Linear(4, 2), torch.ones(1, 4)
    with pycompiler.precompile.capture(predict, artifact_path="predict.pyca") as captured:
        captured(model, x)

    served = pycompiler.precompile.load("predict.pyca")
    torch.testing.assert_close(served(model, x), predict(model, x))
    ```
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pycompiler import api
from pycompiler.config import say_once
from pycompiler.errors import ArgumentError, ArtefactError, describe
from pycompiler.wrapping import original_of

__all__ = ["Capture", "PrecompileError", "capture", "load"]

PrecompileError = ArtefactError
Path_ = str | os.PathLike[str]


class Capture:
    """The result of `capture`: a context manager, and a callable inside of its block."""

    def __init__(
        self, function: Callable[..., Any], artifact_path: Path_, cache_path: Path_ | None, backend: str
    ) -> None:
        self.paths = artifact_path, cache_path
        self.compiled = api.compile(function, backend=backend)
        self.state = "before its block"
        self.calls = 0

    def __enter__(self) -> Capture:
        if self.state != "before its block":
            raise ArtefactError(f"a capture has one block, and this one is {self.state}: call capture() again")
        self.state = "inside its block"
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function, whose entries are captured."""
        self._check("called")
        result = self.compiled(*args, **kwargs)
        self.calls += 1
        return result

    def save(self) -> None:
        """Write what has been captured so far."""
        self._check("saved")
        if not self.calls:
            raise ArtefactError("nothing was captured: call the capture inside its block")
        artifact, cache = self.paths
        api.save(self.compiled, artifact)
        if cache is not None:
            Path(cache).write_bytes(b"")

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        try:
            if kind is None:
                self.save()
        finally:
            self.state = "after its block"

    def _check(self, what: str) -> None:
        if self.state != "inside its block":
            raise ArtefactError(f"a capture is {what} inside its block, and this one is {self.state}")


def capture(
    fn: Callable[..., Any],
    /,
    *,
    artifact_path: str | os.PathLike[str],
    cache_path: str | os.PathLike[str] | None = None,
    tracer: object = None,
    backend: str = "inductor",
) -> Capture:
    """Compile a function for the calls that a block makes, and write an artefact at the end of the block.

    Each call runs, and gives its result.  Other than torch's, a block may make any number of calls, with other shapes and
    branches: the artefact has an entry for each.  A block that raises writes nothing.

    Args:
        fn: A function that another process finds by its name: at the top of a module, or a method of a class there.
            Modules and tensors are its arguments.
        artifact_path: The artefact's file.
        cache_path: Accepted for compatibility.  The file becomes empty: the artefact holds its kernels.
        tracer: Accepted for compatibility.  It has no effect.
        backend: A name of `list_backends(None)`.

    Returns:
        Capture: A context manager.  Inside its block it is called as `fn` is; `save()` writes what it has so far.

    Raises:
        ArgumentError: `fn` is not a function.
        ArtefactError: No name leads to `fn`; at the end of the block: it made no call, or no entry can be saved.

    Example:
        ```python
        def predict(model, x):
            return model(x).softmax(-1)

        model = torch.nn.Linear(4, 2)
        with pycompiler.precompile.capture(predict, artifact_path="predict.pyca") as captured:
            for batch in (1, 8):
                captured(model, torch.ones(batch, 4))
        ```
    """
    function = original_of(fn)
    if not isinstance(function, types.FunctionType):
        raise ArgumentError(f"precompile.capture() takes a function, got {describe(fn)}: pass modules as arguments")
    from pycompiler.artefacts.aot_compile import check_name

    check_name(function)
    if tracer is not None:
        say_once("precompile.capture(tracer=...) has no effect: programs are captured as by compile()")
    return Capture(function, artifact_path, cache_path, backend)


def load(
    artifact_path: str | os.PathLike[str],
    cache_path: str | os.PathLike[str] | None = None,
    *,
    fn: Callable[..., Any] | None = None,
    trust: bool = False,
) -> Any:
    """The function of an artefact that `capture` wrote.  Its calls never compile.

    Args:
        artifact_path: The artefact's file.
        cache_path: Accepted for compatibility.  It is not read.
        fn (Callable | None): The captured function.  None: the function of the recorded name, whose module is imported.
        trust: Accept a file that other users may write.  The file holds native code.

    Returns:
        Callable: A compiled function.  A call that fits no entry raises `RecompileError`.

    Raises:
        ArtefactError: As in `pycompiler.load`, and if no function has the recorded name.

    Example:
        ```python
        def double(x):
            return x * 2

        with pycompiler.precompile.capture(double, artifact_path="double.pyca") as captured:
            captured(torch.ones(3))

        served = pycompiler.precompile.load("double.pyca")
        served(torch.ones(3))
        try:
            served(torch.ones(4))
        except pycompiler.exc.RecompileError as error:
            print(error)                             # the guard that failed
        ```
    """
    from pycompiler.artefacts import file
    from pycompiler.artefacts.aot_compile import load_frozen

    what = os.fspath(artifact_path)
    return load_frozen(file.open_safely(Path(what), trust), what, api.compile, function=fn)
