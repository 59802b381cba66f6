"""Explains the resolution of a cell: its reasons, limits, alternatives, and the sources of each fact.

Locks, labels and digests contain only ids and values, so that sentences can be reworded at any time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torchkiln.matrix.facts import Facts, SourceInfo
from torchkiln.matrix.gpu_archs import kept_archs, served_classes
from torchkiln.matrix.matrix import Matrix, Prefer
from torchkiln.matrix.public_record import recorded
from torchkiln.matrix.resolve import require_cuda, resolve
from torchkiln.matrix.tags import aliases_of, tag_of
from torchkiln.model.cell import Cell, Limit, Resolution, Source
from torchkiln.model.operating_system import DEFAULT_OS, base_name, operating_system
from torchkiln.util.sentences import Listing, Sentence, Texts, Value, said, sentence
from torchkiln.util.versions import major_of

_PREFERENCES: tuple[Prefer, ...] = ("default-index", "native")


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    resolution: Resolution
    reason: str  # why it has its status
    limits: tuple[tuple[str, str], ...]  # (fact id, sentence)
    prefer: Prefer
    otherwise: Resolution | None  # with the other value of `prefer`; None: it chooses the same build
    tag: str | None
    aliases: tuple[str, ...]
    archs: tuple[str, ...]  # of the device code in the image
    gpus: tuple[tuple[str, tuple[str, ...]], ...]  # (capability, names) of the GPUs on which this code runs
    require_cuda: str | None
    needs: tuple[str, ...]  # see the function `needs`
    recorded: str | None  # hex sha256 of torch's wheel in the public record
    citations: tuple[tuple[str, tuple[str, ...]], ...]  # (fact id, source ids)
    sources: tuple[SourceInfo, ...]


def explain(cell: Cell, matrix: Matrix, facts: Facts) -> Explanation:
    resolution = resolve(cell, matrix, facts)
    other = next(choice for choice in _PREFERENCES if choice != matrix.prefer)
    otherwise = resolve(cell, replace(matrix, prefer=other), facts)
    build = resolution.build
    classes = served_classes(build.archs, facts.gpus, cell.gpus) if build else ()
    known = recorded(facts, build, cell.python) if build else None
    about = [*_facts_of(resolution, facts.citations), *(["index_sha256"] if known else [])]
    used = tuple((fact, facts.citations[fact]) for fact in about)
    named = dict.fromkeys(source for _, sources in used for source in sources)
    return Explanation(
        resolution=resolution,
        reason=reason(resolution),
        limits=tuple((limit.fact, limit_text(limit, facts)) for limit in resolution.limits),
        prefer=matrix.prefer,
        otherwise=otherwise if otherwise.build != build else None,
        tag=tag_of(resolution) if build else None,
        aliases=aliases_of(resolution, matrix, facts),
        archs=kept_archs(build.archs, cell.gpus) if build else (),
        gpus=tuple((kind.capability, names) for kind in classes if (names := kind.names_on(cell.platform))),
        require_cuda=require_cuda(resolution) if build else None,
        needs=needs(resolution) if build else (),
        recorded=known,
        citations=used,
        sources=tuple(facts.sources[source] for source in named),
    )


def needs(resolution: Resolution) -> tuple[str, ...]:
    """The sources that locking the cell needs besides the default index and Debian's archive."""
    build, cell = resolution.build, resolution.cell
    found = ["PyTorch's own index"] if build and build.source is Source.PYTORCH else []
    same_archive = operating_system(cell.os).distribution == operating_system(DEFAULT_OS).distribution
    found += [] if same_archive else [f"the archive of {base_name(cell.os)}"]
    found += [resolution.standalone.filename] if resolution.standalone else []
    return tuple(found)


def to_json(explanation: Explanation) -> dict[str, Any]:
    """The explanation as JSON values, for scripts."""
    return {
        "prefer": explanation.prefer,
        "tag": explanation.tag,
        "aliases": list(explanation.aliases),
        "reason": explanation.reason,
        "limits": [{"fact": fact, "text": text} for fact, text in explanation.limits],
        "resolution": asdict(explanation.resolution),
        "otherwise": asdict(explanation.otherwise) if explanation.otherwise else None,
        "archs": list(explanation.archs),
        "gpus": {capability: list(names) for capability, names in explanation.gpus},
        "require_cuda": explanation.require_cuda,
        "needs": list(explanation.needs),
        "recorded": explanation.recorded,
        "facts": {fact: list(sources) for fact, sources in explanation.citations},
        "sources": {
            source.id: {"trust": source.trust, "what": source.what} for source in explanation.sources
        },
    }


def _facts_of(resolution: Resolution, cited: Collection[str]) -> Iterable[str]:
    """The ids of all facts that *resolution* is based on, each once."""
    cell, build = resolution.cell, resolution.build
    found = ["rules.grid"]
    if build:
        at = f"releases.{cell.torch}"
        drivers = f"cuda.{build.cuda}" if f"cuda.{build.cuda}" in cited else "cuda"
        found += [f"{at}.variants.{build.variant}", f"{at}.archs.{build.variant}", f"{at}.default"]
        found += [f"{at}.companions", f"{at}.cudnn_major", f"floors.{major_of(cell.cuda)}", drivers]
    found += [bound.fact for bound in resolution.constraints]
    return dict.fromkeys([*found, *(limit.fact for limit in resolution.limits)])


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
    names = {gpus.capability: Listing(between="comma", parts=gpus.names_on()[:2]) for gpus in facts.gpus}
    parts = (sentence("gpus-of", capability=each, names=names[each]) for each in capabilities)
    return Listing(between="semicolon", parts=tuple(parts))
