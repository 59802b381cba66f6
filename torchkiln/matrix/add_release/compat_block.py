"""Writes the block of a release for compat.yaml, with TODO for values that the wheel lacks."""

from __future__ import annotations

from collections.abc import Iterator

from torchkiln.matrix.add_release.propose import ReleaseMetadata
from torchkiln.matrix.facts import Facts


def block(found: ReleaseMetadata) -> str:
    """The block of *found* under `releases`, in the style of the other blocks.

    The schema rejects a block that still has a TODO.
    """
    return "".join(f"{line}\n" for line in _lines(found))


def toolkit_line(found: ReleaseMetadata, facts: Facts) -> str:
    """The line for `cuda` in compat.yaml if the CUDA of *found* is missing there, else ""."""
    if found.cuda in facts.cuda:
        return ""
    where = "the driver tables of NVIDIA's CUDA release notes"
    return f'  "{found.cuda}": {{ga: "TODO", full: "TODO"}}   # TODO: {where}\n'


def _lines(found: ReleaseMetadata) -> Iterator[str]:
    wheel = found.default
    yield f'  "{found.version}":'
    yield from _companions(found)
    yield f"    cudnn_major: {found.cudnn_major or 'TODO   # its metadata does not pin cuDNN'}"
    yield "    default:"
    yield f"      variant: {wheel.variant}"
    yield f"      platform: {wheel.platform}"
    yield f'      requires_python: "{wheel.requires_python}"'
    yield f"      pythons: [{', '.join(wheel.pythons)}]"
    yield f'      triton: "{wheel.triton}"' if wheel.triton else "      triton: TODO   # it requires none"
    if wheel.triton_below:
        yield f'      triton_below: "{wheel.triton_below}"'
    yield "      pins:"
    yield from (f'        {name}: "{version}"' for name, version in wheel.pins)
    if wheel.toolkit:
        yield f"      toolkit: [{', '.join(wheel.toolkit)}]"
    yield "      requires: [" + ", ".join(f'"{requirement}"' for requirement in wheel.requires) + "]"
    if found.bytes_cp310:
        yield f"      bytes_cp310: {found.bytes_cp310}"
    yield "      sha256:"
    yield from (f"        {tag}: {sha256}" for tag, sha256 in wheel.sha256)
    yield "    variants:"
    if not found.archs:
        yield "      # TODO: no GPU code found in the wheel. Add the result of torch.cuda.get_arch_list()"
    yield f"      {wheel.variant}: {{archs: [{', '.join(found.archs) or 'TODO'}], source: wheel}}"
    yield "    index_sha256: {}"


def _companions(found: ReleaseMetadata) -> Iterator[str]:
    pairs = (("torchvision", found.torchvision), ("torchaudio", found.torchaudio))
    for name, companion in pairs:
        if companion.other_cuda:
            of = f"{name} {companion.version} is built for CUDA {companion.other_cuda}"
            yield f"    # {of}: its import fails with torch for CUDA {found.cuda}"
        elif not companion.pins:
            yield f"    # {_doubt(name, companion.version, found.version)}"
    versions = ", ".join(
        f'{name}: "{companion.version or "TODO"}"' for name, companion in pairs if not companion.other_cuda
    )
    yield f"    companions: {{{versions}}}"


def _doubt(name: str, version: str | None, torch: str) -> str:
    if version is None:
        return f"TODO: no {name} allows torch {torch}"
    if version == torch:
        return f"{name} {version} does not pin torch: it was chosen by its version number"
    return f"no {name} pins torch {torch}; {version} is the newest that allows it"
