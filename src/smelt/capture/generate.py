"""``generate`` of a compiled model of ``transformers``, whose forward is the compiled one."""

from __future__ import annotations

import copy
import functools
from typing import Any

from torch import nn


def with_generate(compiled: Any, model: Any) -> Any:
    """The ``OptimizedModule`` of ``model``; its method ``generate``, where the model has that of
    ``transformers``, calls the compiled forward.

    Methods but ``forward`` are those of the model itself, which would call its own. Here ``generate`` is
    called on a shallow copy: parameters and modules are shared, and the model stays as it is.
    """
    original: Any = getattr(model, "generate", None)
    if isinstance(model, nn.Module) and original and hasattr(model, "prepare_inputs_for_generation"):
        forward = compiled.dynamo_ctx(model.forward)

        @functools.wraps(original)
        def generate(*args: Any, **kwargs: Any) -> Any:
            twin: Any = copy.copy(model)
            vars(twin)["forward"] = forward  # with the signature, which ``generate`` looks at
            vars(twin)["get_compiled_call"] = lambda config: twin.__call__  # Inductor's, on GPUs
            return twin.generate(*args, **kwargs)

        vars(compiled)["generate"] = generate  # ``setattr`` would write to the model
    return compiled
