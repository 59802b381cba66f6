"""A CPU that passes for a GPU: before a check, it makes CPU tensors of "cuda" ones and counts their bytes.

A check must not pass here, for each asks where its tensors lie. All else that it asks holds, so that mutants
can be told apart where there is no GPU. Times, kernels and the allocator's segments are not imitated.
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
    """Whatever is asked of "cuda", the CPU does."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        options = {key: _here(value) for key, value in (kwargs or {}).items()}
        return func(*map(_here, args), **options)


class Account(TorchDispatchMode):
    """Bytes of all storages alive, their height, and what an allocator would have kept.

    Pinned memory is the host's: here it is plain memory, and in no account.
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
        found = self.product(func, args) if func in _PRODUCTS else func(*args, **options)
        for item in tree_flatten(found)[0]:
            if isinstance(item, torch.Tensor):
                self.add(item.untyped_storage(), of_host)
        return found

    @staticmethod
    def product(func: Callable[..., Any], args: Sequence[Any]) -> torch.Tensor:
        """A product in FP32, rounded once, as GPUs do it; in FP16 itself a CPU takes fifty times as long."""
        found: torch.Tensor = func(*(item.float() for item in args))
        return found.to(args[0].dtype)

    def add(self, storage: Any, of_host: bool) -> None:
        """Count *storage* until it is gone."""
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
        """The height so far is forgotten."""
        self.height = self.held

    def empty(self) -> None:
        """What is held is all that is kept."""
        self.reserved = self.held


def _here(value: Any) -> Any:
    named = isinstance(value, (str, torch.device)) and str(value).startswith("cuda")
    return torch.device("cpu") if named else value


def _on_cpu(kind: Any) -> Any:
    """*kind*, a class whose first argument is a device's kind, for the CPU whatever is said."""

    class OnCpu(kind):  # type: ignore[misc]
        def __init__(self, device: str = "cuda", **options: Any) -> None:
            super().__init__("cpu", **options)

    return OnCpu


account = Account()
_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
_CUDA: Mapping[str, Callable[..., Any]] = {
    "is_available": lambda: True,
    "synchronize": lambda: None,
    "memory_allocated": lambda: account.held,
    "max_memory_allocated": lambda: account.height,
    "memory_reserved": lambda: account.reserved,
    "reset_peak_memory_stats": account.reset,
    "empty_cache": account.empty,
    "mem_get_info": lambda: (0, 0),
}
for _name, _function in _CUDA.items():
    setattr(torch.cuda, _name, _function)
torch.autocast = _on_cpu(torch.autocast)  # type: ignore[misc]
torch.amp.GradScaler = _on_cpu(torch.amp.GradScaler)  # type: ignore[misc]
Redirect().__enter__()
account.__enter__()
