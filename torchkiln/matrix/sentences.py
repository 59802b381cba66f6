"""Writes the sentences about a resolution: its reason and its limits.

Locks, labels and digests contain only ids and values, so that sentences can be reworded at any time.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchkiln.matrix.facts import Facts
from torchkiln.model.cell import Limit, Resolution, Source
from torchkiln.model.index import variable_of


def reason(resolution: Resolution) -> str:
    """Why *resolution* has its status, in one sentence."""
    build, cell = resolution.build, resolution.cell
    if build is None:
        return resolution.why_unavailable
    index = "the default index" if build.source is Source.DEFAULT else "PyTorch's own index"
    if build.cuda == cell.cuda:
        return f"{index} has a wheel built with CUDA {cell.cuda} ({build.version})"
    native = next((other for other in resolution.alternatives if other.cuda == cell.cuda), None)
    missing = (
        f"{native.version} is only on PyTorch's own index"
        if native
        else f"no wheel is built with CUDA {cell.cuda}"
    )
    return f"{missing}; {build.version} from {index} runs on every driver from {resolution.min_driver} on"


def limit_text(limit: Limit, facts: Facts) -> str:
    """The sentence of *limit*.

    :raises KeyError: it is not in *facts*.
    """
    text = facts.limit_texts[limit.fact]
    match limit.fact:
        case "rules.unserved":
            return text.format(_gpus(limit.values, facts))
        case "rules.device-code":
            return text.format(", ".join(limit.values))
        case "rules.young-gpu":
            drivers = (value.split(":") for value in limit.values)
            return text.format(", ".join(f"{capability} from {branch}" for capability, branch in drivers))
        case "rules.own-files":
            name, filename = limit.values
            return text.format(filename, variable_of(name))
        case _:
            return text


def _gpus(capabilities: Sequence[str], facts: Facts) -> str:
    """`"10.0 (B200)"` for each of *capabilities*."""
    names = {gpus.capability: ", ".join(gpus.x86_names[:2]) for gpus in facts.gpus}
    return "; ".join(f"{capability} ({names[capability]})" for capability in capabilities)
