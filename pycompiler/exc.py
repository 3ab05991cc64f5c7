"""All errors in one module, also under torch's names for them.

Example:
    ```python
    @pycompiler.compile(fullgraph=True)
    def step(x):
        print("a graph break")
        return x + 1

    try:
        step(torch.ones(3))
    except pycompiler.exc.Unsupported as error:
        print(error.id, error.reason, error.hint)
    ```
"""

from __future__ import annotations

from pycompiler.errors import (
    ArgumentError,
    ArtefactError,
    BackendError,
    BadBackendResult,
    ConfigError,
    DoubleBackwardError,
    InternalError,
    PyCompilerError,
    RecompileError,
    RecompileLimitExceeded,
    RecompileLimitWarning,
    UnknownName,
    Unsupported,
    UserError,
)

TorchDynamoException = PyCompilerError
BackendCompilerFailed = BackendError
InvalidBackend = UnknownName
FailOnRecompileLimitHit = RecompileLimitExceeded
InternalTorchDynamoError = InternalError
PrecompileError = ArtefactError

__all__ = [
    "ArgumentError", "ArtefactError", "BackendCompilerFailed", "BackendError", "BadBackendResult", "ConfigError",
    "DoubleBackwardError", "FailOnRecompileLimitHit", "InternalError", "InternalTorchDynamoError", "InvalidBackend",
    "PrecompileError", "PyCompilerError", "RecompileError", "RecompileLimitExceeded", "RecompileLimitWarning",
    "TorchDynamoException", "UnknownName", "Unsupported", "UserError",
]  # fmt: skip
