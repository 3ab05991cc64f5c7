"""Handlers of torch's autograd: backward calls, hooks, custom functions, transforms, parameters.

In: calls of the program.
Out: nodes of the graph, effects, or breaks.  Importing this package registers the handlers of each of its modules.

Files in reading order:

- gradients.py: `torch.autograd.grad`, hooks of tensors, `requires_grad_`
- backward_calls.py: `backward()` in a frame
- backward_hooks.py: hooks that a backward in the frame calls
- requires_grad.py: changes of an existing leaf's flag
- parameters.py: new parameters
- inference_mode.py: `torch.inference_mode`
- autograd_function.py: `torch.autograd.Function`
- function_transforms.py: torch.func's transforms and checkpoints
"""

from pycompiler.capture.library.gradients import (  # noqa: F401  (registers handlers)
    autograd_function,
    backward_calls,
    function_transforms,
    gradients,
    inference_mode,
)
