"""A fake GPU (torch 2.4 or newer): "cuda" tensors become CPU tensors, and their bytes are counted.

No check may pass with the fake GPU, because each check measures the device of its tensors. All other values
are within their bounds. So tests without a GPU show which values a mutant breaks. Times, kernels and the
segments of the allocator are not imitated.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class Redirect(TorchFunctionMode):
    """Run calls for "cuda" on the CPU; under autocast, functions that CUDA runs in FP32 run in FP32."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        options = {key: _here(value) for key, value in (kwargs or {}).items()}
        if func in _IN_FLOAT and torch.is_autocast_enabled():
            args = [item.float() if _is_half(item) else item for item in args]
        return func(*map(_here, args), **options)


class Account(TorchDispatchMode):
    """The bytes of all live storages, their peak, and the bytes that an allocator would reserve.

    Pinned memory belongs to the host: the fake GPU uses ordinary memory for it, and does not count it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = self.height = self.reserved = 0
        self.known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        options = dict(kwargs or {})
        of_host = bool(options.pop("pin_memory", False))
        found = self.product(func, args, options) if func in _PRODUCTS else func(*args, **options)
        for item in tree_flatten(found)[0]:
            if isinstance(item, torch.Tensor):
                self.add(item.untyped_storage(), of_host)
        return found

    @staticmethod
    def product(func: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> torch.Tensor:
        """A product in half precision, computed in FP32 and rounded once, as on GPUs; FP16 on a CPU is 50
        times slower."""
        found: torch.Tensor
        if not _is_half(args[0]):
            found = func(*args, **options)
            return found
        found = func(*(item.float() if _is_half(item) else item for item in args), **options)
        return found.to(args[0].dtype)

    def add(self, storage: Any, of_host: bool) -> None:
        """Count *storage* until it is freed."""
        key, size = id(storage), 0 if of_host else storage.nbytes()
        if key in self.known:
            return

        def gone(_: Any) -> None:
            del self.known[key]
            self.held -= size

        self.known[key] = weakref.ref(storage, gone)
        self.held += size
        self.height = max(self.height, self.held)
        self.reserved = max(self.reserved, self.held)

    def reset(self) -> None:
        """Reset the peak."""
        self.height = self.held

    def empty(self) -> None:
        """Release the bytes that are not in use."""
        self.reserved = self.held


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _here(value: Any) -> Any:
    named = isinstance(value, (str, torch.device)) and str(value).startswith("cuda")
    return torch.device("cpu") if named else value


def _on_cpu(kind: Any, other: str = "xpu") -> Any:
    """*kind*, a class whose first argument is a device type, always for the CPU; for *other* instead of it:
    what is meant for the CPU must not change the fake GPU."""

    class OnCpu(kind):  # type: ignore[misc]
        def __init__(self, device_type: str = "cuda", **options: Any) -> None:
            super().__init__("cpu" if str(device_type).startswith("cuda") else other, **options)

    return OnCpu


def _older(region: Any) -> Any:
    """torch.cuda.amp.autocast by *region*, the newer class."""

    class Older(region):  # type: ignore[misc]
        def __init__(
            self, enabled: bool = True, dtype: Any = torch.float16, cache_enabled: bool = True
        ) -> None:
            super().__init__("cuda", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)

    return Older


def _for_cpu(decorator: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *function, device_type, **options: decorator(*function, device_type="cpu", **options)


def _to_cpu(load: Callable[..., Any]) -> Callable[..., Any]:
    return lambda file, **options: load(file, **(options | {"map_location": "cpu"}))


account = Account()
_PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
    torch.ops.aten.convolution.default,
)
_functional = torch.nn.functional
_IN_FLOAT = (
    *(torch.exp, torch.expm1, torch.log, torch.log2, torch.log10, torch.log1p, torch.reciprocal, torch.rsqrt),
    *(torch.sinh, torch.tan, torch.sum, torch.norm, torch.cumsum, torch.cumprod, torch.logsumexp),
    *(torch.Tensor.__pow__, torch.cosine_similarity, _functional.softmax, _functional.log_softmax),
    *(_functional.softplus, _functional.layer_norm, _functional.group_norm),
)
_enabled, _enable = torch.is_autocast_enabled, torch.set_autocast_enabled
_CUDA: Mapping[str, Callable[..., Any]] = {
    "is_available": lambda: True,
    "synchronize": lambda: None,
    "memory_allocated": lambda: account.held,
    "max_memory_allocated": lambda: account.height,
    "memory_reserved": lambda: account.reserved,
    "reset_peak_memory_stats": account.reset,
    "empty_cache": account.empty,
    "mem_get_info": lambda: (0, 0),
    "get_rng_state": lambda device="cuda": torch.get_rng_state(),
    "set_rng_state": lambda state, device="cuda": torch.set_rng_state(state),
}
for _name, _function in _CUDA.items():
    setattr(torch.cuda, _name, _function)
torch.is_autocast_enabled = lambda device="cpu": _enabled(device)  # type: ignore[assignment]
# torch's own checkpoints use the second name, also for the CPU.
torch.autocast, torch.amp.autocast = _on_cpu(torch.autocast), _on_cpu(torch.autocast, "cpu")  # type: ignore[misc]
torch.cuda.amp.autocast = _older(torch.autocast)  # type: ignore[misc]
torch.set_autocast_enabled = lambda *options: _enable(*(("cpu", *options)[-2:]))  # type: ignore[assignment]
torch.amp.GradScaler = _on_cpu(torch.amp.GradScaler)  # type: ignore[misc]
for _name in ("custom_fwd", "custom_bwd"):
    setattr(torch.amp, _name, _for_cpu(getattr(torch.amp, _name)))
torch.load = _to_cpu(torch.load)
# oneDNN has no LSTM in half precision.
torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]
Redirect().__enter__()
account.__enter__()
