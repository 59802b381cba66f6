"""Resolves a cell to a build of torch: native, minor-compat or unavailable.

A wheel built with exactly the cell's CUDA minor is native. A wheel of the same major and a newer minor runs
on the same drivers (minor-compat). A wheel of another major is never used. `prefer` of the matrix decides
whether a build of the default index precedes a native one that only PyTorch's own index has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from torchkiln.errors import Unresolvable
from torchkiln.matrix.cuda_redist import digest_of
from torchkiln.matrix.facts import Facts, KnownToolkit, Release, Trap, Variant
from torchkiln.matrix.gpu_archs import kept_archs, served_classes
from torchkiln.matrix.matrix import Matrix, Pair
from torchkiln.matrix.os_tools import missing_compiler, tools_of
from torchkiln.model.cell import Cell, Constraint, Limit, Resolution, Source, Status, Toolkit, TorchBuild
from torchkiln.model.operating_system import DEFAULT_OS
from torchkiln.model.platform import DEFAULT_PLATFORM, PLATFORMS
from torchkiln.util.versions import major_of, minor_of, newest, numbers


def resolve(cell: Cell, matrix: Matrix, facts: Facts) -> Resolution:
    """The resolution of *cell* by the settings of *matrix*; every cell has one."""
    for bound in matrix.bounds:
        if bound.covers(cell):
            return _unavailable(cell, matrix, facts, f"known to fail: {bound.reason}")
    release = facts.releases[cell.torch]
    if why := _why_not_on_platform(cell, release):
        return _unavailable(cell, matrix, facts, why)
    candidates = sorted(_candidates(cell, release), key=lambda build: _rank(build, cell, matrix))
    if not candidates:
        return _unavailable(cell, matrix, facts, _why_none(cell, release, facts))
    if why := missing_compiler(cell, facts):
        return _unavailable(cell, matrix, facts, why)
    if why := _why_unserved(cell, candidates[0], facts):
        return _unavailable(cell, matrix, facts, why)
    return _resolved(cell, matrix, facts, candidates)


def require_buildable(resolution: Resolution) -> TorchBuild:
    """The build that *resolution* chose.

    :raises Unresolvable: the cell is unavailable, or is devel and its toolkit is not known.
    """
    cell = resolution.cell
    kept = f", GPUs {','.join(cell.gpus)}" if cell.gpus else ""
    name = f"torch {cell.torch} with CUDA {cell.cuda} ({cell.flavor}, {cell.os}{kept})"
    if resolution.build is None:
        near = ", ".join(nearest_options(resolution))
        hint = f"nearest: {near}" if near else "omit --gpus to get an image for all GPUs" if cell.gpus else ""
        raise Unresolvable(f"{name} is unavailable: {resolution.why_unavailable}", hint=hint)
    if any(limit.fact == "rules.devel-toolkit" for limit in resolution.limits):
        raise Unresolvable(
            f"{name} cannot be built: torchkiln knows neither wheels nor archives of the CUDA {cell.cuda}"
            " toolkit",
            hint="omit --flavor, or use --flavor runtime",
        )
    return resolution.build


def nearest_options(resolution: Resolution) -> tuple[str, ...]:
    """The options that select the cells nearest to that of *resolution*, which is unavailable."""
    os_name = resolution.cell.os
    of_os = "" if os_name == DEFAULT_OS else f" --os {os_name}"
    platform = resolution.cell.platform
    of_os += "" if platform == DEFAULT_PLATFORM else f" --platform {platform}"
    return tuple(f"--torch {torch} --cuda {cuda}{of_os}" for torch, cuda in resolution.nearest)


def require_cuda(resolution: Resolution) -> str:
    """The image's NVIDIA_REQUIRE_CUDA: ``cuda>=12.0``, the version that the minimum driver reports.

    The wheel's own minor would exclude drivers on which the cell runs. The first driver of a CUDA major
    reports that major's .0 (facts: ``floors``), as a test checks.
    """
    return f"cuda>={major_of(resolution.cell.cuda)}.0"


def _candidates(cell: Cell, release: Release) -> Iterable[TorchBuild]:
    """All builds of the cell's CUDA major with at least its minor; none without a wheel for its Python."""
    if "cp" + cell.python.replace(".", "") not in release.default.pythons:
        return
    for variant in release.variants:
        same_major = major_of(variant.cuda) == major_of(cell.cuda)
        archs = variant.archs if cell.platform == DEFAULT_PLATFORM else variant.aarch64
        if archs and same_major and numbers(variant.cuda) >= numbers(cell.cuda):
            yield _build(release, variant, archs)


def _build(release: Release, variant: Variant, archs: tuple[str, ...]) -> TorchBuild:
    return TorchBuild(
        version=f"{release.version}+{variant.name}",
        variant=variant.name,
        cuda=variant.cuda,
        source=Source.DEFAULT if variant.name == release.default.variant else Source.PYTORCH,
        archs=archs,
        # For some builds of PyTorch's own index only cuDNN's major is known; the tag contains only that.
        cudnn=variant.cudnn or release.cudnn_major,
        nccl=variant.nccl,
    )


def _rank(build: TorchBuild, cell: Cell, matrix: Matrix) -> tuple[bool, bool, tuple[int, ...]]:
    elsewhere, newer_minor = build.source is not Source.DEFAULT, build.cuda != cell.cuda
    first, second = (newer_minor, elsewhere) if matrix.prefer == "native" else (elsewhere, newer_minor)
    return (first, second, numbers(build.cuda))


def _resolved(cell: Cell, matrix: Matrix, facts: Facts, candidates: Sequence[TorchBuild]) -> Resolution:
    build, *others = candidates
    native = build.cuda == cell.cuda
    traps = [trap for trap in facts.traps if _applies(trap, cell, build)]
    known = facts.toolkits.get(cell.cuda) if cell.flavor == "devel" else None
    return Resolution(
        cell=cell,
        status=Status.NATIVE if native else Status.MINOR_COMPAT,
        build=build,
        alternatives=tuple(others),
        min_driver=facts.floors[major_of(cell.cuda)].driver,
        full_driver=facts.cuda[build.cuda].full,
        requirements=(
            *_requirements(build, facts.releases[cell.torch], matrix, traps),
            *([known.requires] if known and known.requires else []),
        ),
        constraints=tuple(
            Constraint(requirement=trap.constrain, fact=trap.id) for trap in traps if trap.constrain
        ),
        limits=tuple(_limits(cell, build, facts, traps)),
        lockable=build.source is Source.DEFAULT
        and (cell.flavor == "runtime" or bool(known and known.requires)),
        toolkit=_toolkit(known, build, facts) if known else None,
        tools=tools_of(cell, facts),
        standalone=matrix.standalone(cell.os),
    )


def _toolkit(known: KnownToolkit, build: TorchBuild, facts: Facts) -> Toolkit:
    """The toolkit with the digest of the facts about its archives: if they change, older locks are stale."""
    toolkit = known.toolkit
    if not toolkit.release:
        return toolkit
    cudnn = major_of(build.cudnn or "")
    return replace(
        toolkit,
        libraries=tuple(
            path.replace("{cudnn}", cudnn).replace("{cuda}", build.cuda) for path in toolkit.libraries
        ),
        archives=digest_of(facts.redist.releases.get(toolkit.release, ())),
    )


def _requirements(
    build: TorchBuild, release: Release, matrix: Matrix, traps: Sequence[Trap]
) -> tuple[str, ...]:
    # Builds on PyTorch's own index have a local version, "+cu118"; those on the default index have none.
    local = "" if build.source is Source.DEFAULT else f"+{build.variant}"
    return (
        f"torch=={release.version}{local}",
        f"torchvision=={release.torchvision}{local}",
        *([f"torchaudio=={release.torchaudio}{local}"] if release.torchaudio else []),
        *matrix.packages,
        *(trap.require for trap in traps if trap.require),
    )


def _applies(trap: Trap, cell: Cell, build: TorchBuild) -> bool:
    return (
        (not trap.releases or minor_of(cell.torch) in trap.releases)
        and (not trap.variants or build.variant in trap.variants)
        and (trap.python_from is None or numbers(cell.python) >= numbers(trap.python_from))
    )


def _limits(cell: Cell, build: TorchBuild, facts: Facts, traps: Sequence[Trap]) -> Iterable[Limit]:
    if cell.flavor == "devel":
        yield from _limits_of_devel(cell, facts)
    if build.source is not Source.DEFAULT:
        yield Limit(fact="rules.other-index")
    if build.cuda != cell.cuda:
        for rule in ("minor-compat-ptx", "minor-compat-calls", "minor-compat-jit"):
            yield Limit(fact=f"rules.{rule}")
    has_ptx = any(arch.startswith("compute_") for arch in kept_archs(build.archs, cell.gpus))
    if cell.gpus:
        yield Limit(fact="rules.device-code", values=cell.gpus)
    if has_ptx or not cell.gpus:
        yield Limit(fact="rules.ptx-needs-driver" if has_ptx else "rules.no-ptx")
    if cell.own_use:
        yield Limit(fact="rules.own-use")
    served = served_classes(build.archs, facts.gpus, cell.gpus)
    if unserved := [
        gpus.capability for gpus in facts.gpus if gpus not in served and gpus.names_on(cell.platform)
    ]:
        yield Limit(fact="rules.unserved", values=tuple(unserved))
    floor = int(major_of(facts.floors[major_of(cell.cuda)].driver))
    young = [gpus for gpus in served if gpus.names_on(cell.platform) and (gpus.first_branch or 0) > floor]
    if young:
        values = tuple(f"{gpus.capability}:{gpus.first_branch}" for gpus in young)
        yield Limit(fact="rules.young-gpu", values=values)
    for trap in traps:
        if trap.limit:
            yield Limit(fact=trap.id)


def _limits_of_devel(cell: Cell, facts: Facts) -> Iterable[Limit]:
    known = facts.toolkits.get(cell.cuda)
    if known is None or (known.toolkit.release and known.toolkit.release not in facts.redist.releases):
        yield Limit(fact="rules.devel-toolkit")
    elif known.toolkit.release:
        yield Limit(fact="rules.devel-archives")
        if facts.redist.untrusted:
            yield Limit(fact="rules.untrusted-toolkit")


def _why_unserved(cell: Cell, build: TorchBuild, facts: Facts) -> str:
    """The GPUs of *cell* that code of *build* does not serve, as a clause; empty: there are none."""
    if not cell.gpus:
        return ""
    served = [kind.capability for kind in served_classes(build.archs, facts.gpus) if kind.names_on()]
    without = [capability for capability in cell.gpus if capability not in served]
    if not without:
        return ""
    return f"{build.version} has no code for capability {', '.join(without)}, only for {', '.join(served)}"


def _why_not_on_platform(cell: Cell, release: Release) -> str:
    """Why no image of *cell* is built for its platform, as a clause; empty: that does not matter."""
    platform = PLATFORMS[cell.platform]
    if cell.platform == DEFAULT_PLATFORM:
        return ""
    if numbers(cell.torch) < numbers(platform.first_torch):
        first = platform.first_torch
        return f"torch {cell.torch} has no CUDA wheels for {platform.name}; the first that has is {first}"
    if not any(variant.aarch64 for variant in release.variants):
        return f"torchkiln does not know the device code of torch {cell.torch} for {platform.name}"
    if cell.flavor != "runtime" or cell.os != DEFAULT_OS or cell.gpus:
        return (
            f"images for {platform.name} have the flavor runtime, the system {DEFAULT_OS}, and all GPU code"
        )
    return ""


def _why_none(cell: Cell, release: Release, facts: Facts) -> str:
    if "cp" + cell.python.replace(".", "") not in release.default.pythons:
        return f"torch {cell.torch} has no wheel for Python {cell.python}"
    major = major_of(cell.cuda)
    same_major = [variant.cuda for variant in release.variants if major_of(variant.cuda) == major]
    if same_major:
        return f"torch {cell.torch} has no CUDA {major} build newer than {newest(same_major)}"
    others = [
        version
        for version, other in facts.releases.items()
        if any(major_of(variant.cuda) == major for variant in other.variants)
    ]
    before = [version for version in others if numbers(version) < numbers(cell.torch)]
    after = [version for version in others if numbers(version) > numbers(cell.torch)]
    found = [f"the last is {newest(before)}"] if before else []
    found += [f"the first is {min(after, key=numbers)}"] if after else []
    known = ", ".join(found) or "no known release has one"
    return f"torch {minor_of(cell.torch)} has no CUDA {major} build; {known}"


def _unavailable(cell: Cell, matrix: Matrix, facts: Facts, reason: str) -> Resolution:
    return Resolution(
        cell=cell,
        status=Status.UNAVAILABLE,
        why_unavailable=reason,
        build=None,
        min_driver=None,
        full_driver=None,
        requirements=(),
        constraints=(),
        limits=(),
        nearest=_nearest(cell, matrix, facts),
    )


def _nearest(cell: Cell, matrix: Matrix, facts: Facts) -> tuple[tuple[str, str], ...]:
    """The available cells nearest to *cell*: same torch and nearest CUDA, and same CUDA and nearest torch.

    If there is neither, the cell with the nearest torch.
    """

    def works(torch: str, cuda: str) -> bool:
        other = replace(cell, torch=torch, cuda=cuda)
        builds = _candidates(other, facts.releases[torch])
        build = min(builds, key=lambda build: _rank(build, other, matrix), default=None)
        bounded = any(bound.covers(other) for bound in matrix.bounds)
        if _why_not_on_platform(other, facts.releases[torch]):
            return False
        if bounded or build is None or missing_compiler(other, facts):
            return False
        return not _why_unserved(other, build, facts)

    torches = sorted({*matrix.releases, cell.torch}, key=numbers)
    cudas = sorted({*matrix.cudas, cell.cuda}, key=numbers)

    def distances(pair: Pair) -> tuple[int, int]:
        return (
            abs(torches.index(cell.torch) - torches.index(pair[0])),
            abs(cudas.index(cell.cuda) - cudas.index(pair[1])),
        )

    def first(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
        return tuple(islice((pair for pair in pairs if works(*pair)), 1))

    ordered = sorted(matrix.pairs, key=distances)
    same_torch = first(pair for pair in ordered if pair[0] == cell.torch)
    same_cuda = first(pair for pair in ordered if pair[1] == cell.cuda)
    return same_torch + same_cuda or first(ordered)
