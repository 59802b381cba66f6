"""Told -> YAML text: a release's block for compat.yaml. What metadata does not tell stands there as TODO."""

from __future__ import annotations

from collections.abc import Iterator

from torchkiln.matrix.add_release.propose import Companion, Told
from torchkiln.matrix.facts import Facts


def block(told: Told) -> str:
    """The block of *told* under `releases`, in the style of those that stand there.

    The schema refuses it for as long as a TODO is in it.
    """
    return "".join(f"{line}\n" for line in _lines(told))


def toolkit_line(told: Told, facts: Facts) -> str:
    """The line for compat.yaml's `cuda` if it lacks the CUDA of *told*, else ""."""
    if told.cuda in facts.cuda:
        return ""
    where = "the driver tables of NVIDIA's CUDA release notes"
    return f'  "{told.cuda}": {{ga: "TODO", full: "TODO"}}   # TODO: {where}\n'


def _lines(told: Told) -> Iterator[str]:
    wheel = told.default
    yield f'  "{told.version}":'
    yield from _companions(told)
    yield f"    cudnn_major: {told.cudnn_major or 'TODO   # its metadata pins no cuDNN'}"
    yield "    default:"
    yield f"      variant: {wheel.variant}"
    yield f"      platform: {wheel.platform}"
    yield f'      requires_python: "{wheel.requires_python}"'
    yield f"      pythons: [{', '.join(wheel.pythons)}]"
    asks = f"TODO   # it asks for {told.triton_asks or 'no triton'}"
    yield f'      triton: "{wheel.triton}"' if wheel.triton else f"      triton: {asks}"
    if wheel.triton_below:
        yield f'      triton_below: "{wheel.triton_below}"'
    yield "      pins:"
    yield from (f'        {name}: "{version}"' for name, version in wheel.pins)
    if wheel.toolkit:
        yield f"      toolkit: [{', '.join(wheel.toolkit)}]"
    yield "      requires: [" + ", ".join(f'"{one}"' for one in wheel.requires) + "]"
    yield f"      bytes_cp310: {told.bytes_cp310 or 'TODO   # it has no wheel for CPython 3.10'}"
    yield "      sha256:"
    yield from (f"        {tag}: {sha256}" for tag, sha256 in wheel.sha256)
    yield "    variants:"
    yield "      # TODO: metadata tells no GPU code. Put what torch.cuda.get_arch_list() says (it stands in"
    yield "      # libtorch_python.so too), and a line for each other CUDA build on PyTorch's own index"
    yield f"      {wheel.variant}: {{archs: [TODO], source: TODO}}"
    yield "    index_sha256: {}"


def _companions(told: Told) -> Iterator[str]:
    pairs = (("torchvision", told.torchvision), ("torchaudio", told.torchaudio))
    for name, one in pairs:
        if not one.pins:
            yield f"    # {_doubt(name, one, told.version)}"
    yield "    companions: {" + ", ".join(f'{name}: "{one.version or "TODO"}"' for name, one in pairs) + "}"


def _doubt(name: str, one: Companion, torch: str) -> str:
    if one.version is None:
        return f"TODO: no {name} pins torch {torch}"
    if one.version == torch:
        return f"{name} {one.version} pins no torch: it is told by its number"
    return f"TODO: no {name} pins torch {torch} exactly; {one.version}, which would take it, is the newest"
