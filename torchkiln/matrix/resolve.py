"""Cell -> Resolution: native, minor-compat or unavailable, by rule from what the facts know.

The rule: a wheel built with exactly the asked CUDA minor is native; a wheel of the same major and a newer
minor runs on the same drivers (minor-compat); a major is never crossed. `prefer` of the matrix decides
whether the default index's build goes before a native one that only PyTorch's own index has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torchkiln.errors import Unresolvable
from torchkiln.matrix.components import files_of, for_cell
from torchkiln.matrix.cuda_redist import digest_of
from torchkiln.matrix.facts import Facts, KnownToolkit, Release, Trap, Variant
from torchkiln.matrix.gpu_archs import served_classes
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.os_tools import tools_of
from torchkiln.model.cell import (
    Cell,
    CellComponent,
    Constraint,
    Limit,
    Resolution,
    Source,
    Status,
    Toolkit,
    TorchBuild,
)
from torchkiln.util.versions import major_of, minor_of, newest, numbers


def resolve(cell: Cell, matrix: Matrix, facts: Facts) -> Resolution:
    """What *cell* is, with every reason. Total: each cell of *matrix* has an answer."""
    plain = _plain(cell, matrix, facts)
    return _with_components(plain, matrix, facts) if cell.components else plain


def _plain(cell: Cell, matrix: Matrix, facts: Facts) -> Resolution:
    for bound in matrix.bounds:
        if bound.covers(cell):
            return _unavailable(cell, matrix, facts, f"seen to fail: {bound.reason}")
    release = facts.releases[cell.torch]
    candidates = sorted(_candidates(cell, release), key=lambda build: _rank(build, cell, matrix))
    if not candidates:
        return _unavailable(cell, matrix, facts, _why_none(cell, release, facts))
    return _resolved(cell, matrix, facts, candidates)


def require_buildable(resolution: Resolution) -> TorchBuild:
    """The build that *resolution* chose.

    :raises Unresolvable: the cell is unavailable, or devel with a toolkit that no lock holds yet.
    """
    cell = resolution.cell
    asked = f"torch {cell.torch} with CUDA {cell.cuda} ({cell.flavor}, {cell.os})"
    if resolution.build is None:
        near = ", ".join(f"--torch {torch} --cuda {cuda}" for torch, cuda in resolution.nearest)
        raise Unresolvable(
            f"{asked} is unavailable: {resolution.why_unavailable}", hint=f"nearest: {near}" if near else ""
        )
    if any(limit.fact == "rules.devel-toolkit" for limit in resolution.limits):
        raise Unresolvable(
            f"{asked} cannot be built: no toolkit of CUDA {cell.cuda} is known here, neither of wheels nor of"
            " NVIDIA's archives",
            hint="omit --flavor, or use --flavor runtime",
        )
    return resolution.build


def require_cuda(resolution: Resolution) -> str:
    """What the image may demand in NVIDIA_REQUIRE_CUDA: ``cuda>=12.0``, which the floor's driver reports.

    Demanding the wheel's own minor would shut out drivers on which the cell runs. The first driver of a
    CUDA major reports that major's .0 (facts: ``floors``), which a test holds against the facts.
    """
    return f"cuda>={major_of(resolution.cell.cuda)}.0"


def _candidates(cell: Cell, release: Release) -> Iterable[TorchBuild]:
    """All builds of the asked major, not older than asked, with a wheel for the system's Python."""
    if "cp" + cell.python.replace(".", "") not in release.default.pythons:
        return
    for variant in release.variants:
        same_major = major_of(variant.cuda) == major_of(cell.cuda)
        if same_major and numbers(variant.cuda) >= numbers(cell.cuda):
            yield _build(release, variant)


def _build(release: Release, variant: Variant) -> TorchBuild:
    return TorchBuild(
        version=f"{release.version}+{variant.name}",
        variant=variant.name,
        cuda=variant.cuda,
        source=Source.DEFAULT if variant.name == release.default.variant else Source.PYTORCH,
        archs=variant.archs,
        # Of some builds of PyTorch's own index only cuDNN's major is known, which is all that a tag tells.
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
    )


def _toolkit(known: KnownToolkit, build: TorchBuild, facts: Facts) -> Toolkit:
    """With what the facts say of its archives now: when that changes, older locks are stale."""
    toolkit = known.toolkit
    if not toolkit.release:
        return toolkit
    cudnn = major_of(build.cudnn or "")
    return replace(
        toolkit,
        libraries=tuple(
            one.replace("{cudnn}", cudnn).replace("{cuda}", build.cuda) for one in toolkit.libraries
        ),
        archives=digest_of(facts.redist.releases.get(toolkit.release, ())),
    )


def _with_components(plain: Resolution, matrix: Matrix, facts: Facts) -> Resolution:
    """*plain* with what its cell names beside; what it needs of the index itself stays as it is."""
    cell, build = plain.cell, plain.build
    if build is None:
        return plain
    found: list[CellComponent] = []
    for offer in matrix.components:
        if offer.name in cell.components:
            told = for_cell(offer, cell, build)
            if isinstance(told, str):
                return replace(_unavailable(cell, matrix, facts, told), nearest=())
            found.append(told)
    own = [file for component in found for file in files_of(component)]
    limits = [Limit(fact="rules.own-files", values=(file.name, file.filename)) for file in own]
    return replace(
        plain,
        components=tuple(found),
        limits=(*plain.limits, *limits),
        lockable=plain.lockable and not own,
    )


def _requirements(
    build: TorchBuild, release: Release, matrix: Matrix, traps: Sequence[Trap]
) -> tuple[str, ...]:
    # PyTorch's own index tells its builds apart by the local version; the default index shows none.
    local = "" if build.source is Source.DEFAULT else f"+{build.variant}"
    return (
        f"torch=={release.version}{local}",
        f"torchvision=={release.torchvision}{local}",
        f"torchaudio=={release.torchaudio}{local}",
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
    has_ptx = any(arch.startswith("compute_") for arch in build.archs)
    yield Limit(fact="rules.ptx-needs-driver" if has_ptx else "rules.no-ptx")
    served = served_classes(build.archs, facts.gpus)
    if unserved := [gpus.capability for gpus in facts.gpus if gpus not in served and gpus.x86_names]:
        yield Limit(fact="rules.unserved", values=tuple(unserved))
    floor = int(major_of(facts.floors[major_of(cell.cuda)].driver))
    young = [gpus for gpus in served if gpus.x86_names and (gpus.first_branch or 0) > floor]
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


def _why_none(cell: Cell, release: Release, facts: Facts) -> str:
    if "cp" + cell.python.replace(".", "") not in release.default.pythons:
        return f"torch {cell.torch} has no wheel for Python {cell.python}"
    asked = major_of(cell.cuda)
    same_major = [variant.cuda for variant in release.variants if major_of(variant.cuda) == asked]
    if same_major:
        return f"torch {cell.torch} has no CUDA {asked} build newer than {newest(same_major)}"
    having = [
        version
        for version, other in facts.releases.items()
        if any(major_of(variant.cuda) == asked for variant in other.variants)
    ]
    before = [version for version in having if numbers(version) < numbers(cell.torch)]
    after = [version for version in having if numbers(version) > numbers(cell.torch)]
    told = [f"the last is {newest(before)}"] if before else []
    told += [f"the first is {min(after, key=numbers)}"] if after else []
    others = ", ".join(told) or "nor has any known release"
    return f"torch {minor_of(cell.torch)} has no CUDA {asked} build; {others}"


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
    """The same torch with the nearest CUDA, and the same CUDA with the nearest torch, of those that work."""

    def works(torch: str, cuda: str) -> bool:
        other = Cell(torch=torch, cuda=cuda, flavor=cell.flavor, os=cell.os, python=cell.python)
        bounded = any(bound.covers(other) for bound in matrix.bounds)
        return not bounded and any(True for _ in _candidates(other, facts.releases[torch]))

    def by_distance(value: str, known: Sequence[str], others: Iterable[str]) -> list[str]:
        order = sorted({*known, value}, key=numbers)
        here = order.index(value)
        return sorted(others, key=lambda one: abs(order.index(one) - here))

    of_torch = [cuda for torch, cuda in matrix.pairs if torch == cell.torch]
    of_cuda = [torch for torch, cuda in matrix.pairs if cuda == cell.cuda]
    cudas = by_distance(cell.cuda, matrix.cudas, of_torch)
    torches = by_distance(cell.torch, matrix.releases, of_cuda)
    same_torch = next(((cell.torch, cuda) for cuda in cudas if works(cell.torch, cuda)), None)
    same_cuda = next(((torch, cell.cuda) for torch in torches if works(torch, cell.cuda)), None)
    return tuple(pair for pair in (same_torch, same_cuda) if pair)
