"""Print torch's settings in a new interpreter: `defaults.py FOLDERS [draws]`; FOLDERS extends sys.path.

With "draws", only a random number of each generator, which must not be the same in two interpreters.

A setting is what a function without arguments returns that is named like one (get_, is_, are_, _enabled,
_allowed), an attribute of torch.backends or of a compiler's configuration, or the place where a function of
torch is defined.
"""

import contextlib
import enum
import inspect
import json
import operator
import os
import random
import re
import sys
import warnings

sys.path += [folder for folder in json.loads(sys.argv[1]) if folder not in sys.path]
import torch

warnings.simplefilter("ignore")  # of deprecated functions
# Drawn first, because a function that is called below draws a new seed.
DRAWS = {"torch": torch.rand(1, device="cpu").item(), "random": random.random()}
_GETTER = re.compile(r"(get|is|are)_\w+|\w+_(enabled|allowed)")
_INTERNAL = re.compile(
    r"_get_(cudnn|cublas|cuda|cpu|sdp|flash|math|mem|fa3|overrideable|mkldnn|onednn|nnpack|qengine|deterministic"
    r"|float32|fp32|linalg|blas|warn|sm)\w*"
)
# These describe the machine or this process, or must not be called.
_OMITTED = re.compile(
    r".*(device|thread|rng_state|file_path|tracing|available|default_stream|compiled|getter)\w*"
)
_PLAIN = (bool, int, float, str, type(None), enum.Enum, torch.dtype)


def plain(value):
    """Whether *value* is a setting that can be compared as text."""
    return isinstance(value, _PLAIN) or ("torch._C" in str(type(value)) and " at 0x" not in repr(value))


def of(module, named):
    """The settings of *module*: the results of its functions whose names match."""
    for name in sorted(set(dir(module)) | set(dir(type(module)))):
        if not named.fullmatch(name) or _OMITTED.fullmatch(name):
            continue
        with contextlib.suppress(Exception):  # it needs arguments or a GPU
            value = getattr(module, name)
            value = value() if callable(value) else value
            if plain(value):
                yield name, repr(value)


def attributes(module):
    """Plain attributes of *module*, such as a configuration, whose settings dir may not list."""
    hidden = vars(module).get("_config")  # its names have dots: triton.cudagraphs
    for name in sorted({*dir(module), *dir(type(module)), *(hidden if isinstance(hidden, dict) else ())}):
        if name.startswith("_") or name in ("is_available", "m"):
            continue
        with contextlib.suppress(Exception):
            value = operator.attrgetter(name)(module)
            if plain(value):
                yield name, repr(value)


def functions(module):
    """Where the functions and classes of *module* are defined: another place if one was replaced."""
    for name, value in sorted(vars(module).items()):
        if callable(value) and not name.startswith("__"):
            code = getattr(inspect.unwrap(value) if inspect.isfunction(value) else value, "__code__", None)
            place = (
                f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', type(value).__name__)}"
            )
            yield name, f"{place} {getattr(code, 'co_firstlineno', '')}"


def settings():
    """All settings by name."""
    backends = torch.backends
    modules = {
        name: getattr(backends, name)
        for name in (
            "cuda",
            "cudnn",
            "mkldnn",
            "mkl",
            "openmp",
            "quantized",
            "opt_einsum",
            "mha",
            "cusparselt",
        )
        if hasattr(backends, name)
    }
    modules["cuda.matmul"] = backends.cuda.matmul
    found = {}
    for name, module in modules.items():
        found |= {
            f"torch.backends.{name}.{key}": value
            for key, value in (*of(module, _GETTER), *attributes(module))
        }
    found |= {f"torch.{key}": value for key, value in of(torch, _GETTER)}
    found |= {f"torch._C.{key}": value for key, value in of(torch._C, _INTERNAL)}
    for name in (
        "matmul.allow_tf32",
        "matmul.allow_fp16_reduced_precision_reduction",
        "matmul.allow_bf16_reduced_precision_reduction",
    ):
        with contextlib.suppress(Exception):
            found[f"torch.backends.cuda.{name}"] = repr(getattr(backends.cuda.matmul, name.partition(".")[2]))
    found["torch.empty(0).device"] = repr(str(torch.empty(0).device))
    found["torch.empty(0).requires_grad"] = repr(torch.empty(0).requires_grad)
    hooks = torch.nn.modules.module
    found |= {
        name: repr(len(getattr(hooks, name)))
        for name in sorted(dir(hooks))
        if re.fullmatch(r"_global_\w+_hooks", name)
    }
    for name in ("_len_torch_function_stack", "_len_torch_dispatch_stack"):
        found[f"torch._C.{name}"] = repr(getattr(torch._C, name, int)())
    with contextlib.suppress(ImportError):
        import torch._dynamo.config as dynamo
        import torch._inductor.config as inductor

        for name, module in (
            ("dynamo", dynamo),
            ("inductor", inductor),
            ("inductor.triton", inductor.triton),
        ):
            found |= {f"{name}.{key}": value for key, value in attributes(module)}
    for module in (
        torch,
        torch.Tensor,
        torch.nn.functional,
        torch.cuda,
        torch.cuda.amp,
        torch.amp,
        torch.optim,
        torch.nn,
        torch.nn.Module,
        torch.autograd,
        torch.linalg,
        torch.fft,
        torch.utils.data,
        torch.optim.Optimizer,
        torch.autocast,
    ):
        found |= {f"{module.__name__}.{key} defined": value for key, value in functions(module)}
    return found


found = {} if sys.argv[2:] else {"settings": settings(), "variables": dict(os.environ)}
print(json.dumps(found | {"draws": DRAWS}))
