"""Writes the sentences about a resolution: its reason and its limits.

Locks, labels and digests contain only ids and values, so that sentences can be reworded at any time.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchkiln.matrix.facts import Facts
from torchkiln.model.cell import Limit, Resolution, Source
from torchkiln.util.sentences import Listing, Sentence, Texts, Value, said, sentence

# The reasons, and the parts of reasons and limits; the pages of `ls --site` have them in Chinese, too.
SENTENCES: Texts = {
    "same-cuda": "{index} has a wheel built with CUDA {cuda} ({build})",
    "elsewhere": "{native} is only on PyTorch's own index; {chosen}",
    "no-such-cuda": "no wheel is built with CUDA {cuda}; {chosen}",
    "newer-cuda": "{build} from {index} runs on every driver from {driver} on",
    "default-index": "the default index",
    "pytorch-index": "PyTorch's own index",
    "gpus-of": "{capability} ({names})",
    "from-branch": "{capability} from {branch}",
    "comma": ", ",
    "semicolon": "; ",
}


def reason(resolution: Resolution) -> str:
    """Why *resolution* has its status, in one sentence."""
    found = reason_of(resolution)
    return said(found, SENTENCES) if found else resolution.why_unavailable


def reason_of(resolution: Resolution) -> Sentence | None:
    """Why *resolution* has its status, for any language; None: the cell is unavailable."""
    build, cell = resolution.build, resolution.cell
    if build is None:
        return None
    index = sentence("default-index" if build.source is Source.DEFAULT else "pytorch-index")
    if build.cuda == cell.cuda:
        return sentence("same-cuda", index=index, cuda=cell.cuda, build=build.version)
    driver = resolution.min_driver or ""
    chosen = sentence("newer-cuda", build=build.version, index=index, driver=driver)
    native = next((other for other in resolution.alternatives if other.cuda == cell.cuda), None)
    if native:
        return sentence("elsewhere", native=native.version, chosen=chosen)
    return sentence("no-such-cuda", cuda=cell.cuda, chosen=chosen)


def limit_text(limit: Limit, facts: Facts) -> str:
    """The sentence of *limit*.

    :raises KeyError: the fact of *limit* is not in *facts*.
    """
    return said(limit_of(limit, facts), {**SENTENCES, **facts.limit_texts})


def limit_of(limit: Limit, facts: Facts) -> Sentence:
    """The sentence of *limit*, for any language."""
    return sentence(limit.fact, **_values(limit, facts))


def _values(limit: Limit, facts: Facts) -> dict[str, Value]:
    match limit.fact:
        case "rules.unserved":
            return {"gpus": _gpus(limit.values, facts)}
        case "rules.device-code":
            return {"capabilities": Listing(between="comma", parts=limit.values)}
        case "rules.young-gpu":
            return {"drivers": _drivers(limit.values)}
        case _:
            return {}


def _drivers(values: Sequence[str]) -> Listing:
    """`"8.9 from 520"` for each of *values*, "8.9:520"."""
    pairs = (value.split(":") for value in values)
    parts = (sentence("from-branch", capability=capability, branch=branch) for capability, branch in pairs)
    return Listing(between="comma", parts=tuple(parts))


def _gpus(capabilities: Sequence[str], facts: Facts) -> Listing:
    """`"10.0 (B200)"` for each of *capabilities*."""
    names = {gpus.capability: Listing(between="comma", parts=gpus.x86_names[:2]) for gpus in facts.gpus}
    parts = (sentence("gpus-of", capability=each, names=names[each]) for each in capabilities)
    return Listing(between="semicolon", parts=tuple(parts))
