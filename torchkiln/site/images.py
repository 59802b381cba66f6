"""Reads the locks of a folder and the reports of another, and makes the catalogue."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchkiln.engine.cache_keys import key_of
from torchkiln.engine.known import predicted_blobs, predicted_digest
from torchkiln.errors import KilnError, NothingSelected
from torchkiln.gate.cell_state import NO_LOCKS, CellRecord, record_of, state
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.freshness import outdated
from torchkiln.locks.lock import load_locked
from torchkiln.matrix.explain import limit_of, reason_of
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.gpu_archs import served_classes
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.select import all_cells
from torchkiln.matrix.tags import aliases_of, tag_of
from torchkiln.model.cell import Cell, Resolution
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ImagePlan, MadeLayer
from torchkiln.model.report import SignedReport
from torchkiln.model.untrusted import USES, is_untrusted
from torchkiln.plan.load import plan_locked
from torchkiln.site.catalogue import Catalogue, ListedImage, ListedLayer, ListedPackage, Published, Run
from torchkiln.smoke import hosts
from torchkiln.smoke.attestation import demand_sound
from torchkiln.smoke.suite import Suite
from torchkiln.util.versions import numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageRecord:
    """What is known of an image: its lock, the layers that builds recorded, its reports."""

    resolution: Resolution
    kept: CellRecord
    layers: tuple[tuple[str, Blob | None], ...]  # titles and blobs, lowest first; None: no lock records it
    aliases: tuple[str, ...]


def read_records(
    locks: LockFolder,
    reports: Sequence[SignedReport],
    say: Callable[[str], None],
    earlier_locks: Mapping[Digest, LockedCell] = NO_LOCKS,
) -> tuple[ImageRecord, ...]:
    """The images of the matrix whose lock is in the folder, in the order of the tags.

    :param earlier_locks: of earlier images, by digest.
    :param say: is called with a line for each lock that is left out, because it is stale or untrusted.
    :raises NothingSelected: no lock is left.
    :raises SmokeFailed: the verdict of a report does not follow from its values.
    """
    by_tag = defaultdict(list)
    for signed in reports:
        demand_sound(signed, signed=False)
        by_tag[signed.report.tag].append(signed)
    found = list(_locked(locks, say))
    if not found:
        raise NothingSelected(f"{locks.path} has no lock to list", hint="run: torchkiln lock --all")
    plans = [plan_locked(locked, locks.matrix, locks.facts) for _, locked in found]
    return tuple(
        ImageRecord(
            resolution=resolution,
            kept=record_of(locked, predicted_digest(plan), by_tag[tag_of(resolution)], earlier_locks),
            layers=layers,
            aliases=aliases_of(resolution, locks.matrix, locks.facts),
        )
        for (resolution, locked), plan, layers in zip(found, plans, _recorded_layers(plans), strict=True)
    )


def _recorded_layers(plans: Sequence[ImagePlan]) -> Iterator[tuple[tuple[str, Blob | None], ...]]:
    """The titles and blobs of the layers that builds of *plans* produce, as far as the locks record them.

    A layer that one lock records is known for all plans with the same layer: devel has the layers of runtime.
    """
    predicted = [list(zip(plan.layers, predicted_blobs(plan), strict=True)) for plan in plans]
    known = {
        key_of(spec): blob
        for layers in predicted
        for spec, blob in layers
        if blob and isinstance(spec, MadeLayer)
    }
    for layers in predicted:
        yield tuple(
            (spec.title, known.get(key_of(spec)) if not blob and isinstance(spec, MadeLayer) else blob)
            for spec, blob in layers
        )


def _locked(locks: LockFolder, say: Callable[[str], None]) -> Iterator[tuple[Resolution, LockedCell]]:
    cells = all_cells(locks.matrix)
    for path in sorted(locks.path.glob("*/lock.json")):
        tag = path.parent.name
        try:
            locked = load_locked(locks.path, tag)
        except KilnError as error:
            say(f"left out: {error.message}")
            continue
        if _plain(locked.resolution.cell) not in cells:
            say(f"left out: {tag}: not a cell of the matrix")
            continue
        resolution = locks.resolution(locked.resolution.cell)
        if reason := _fault(locked, resolution, locks.bound):
            say(f"left out: {tag}: {reason}")
        else:
            yield resolution, locked


def _plain(cell: Cell) -> Cell:
    return replace(cell, gpus=(), own_use=False)


def _fault(locked: LockedCell, resolution: Resolution, bound: tuple[str, ...]) -> str:
    """Why the lock is left out: unavailable, untrusted or stale; empty: it is listed."""
    if resolution.build is None:
        return resolution.why_unavailable
    return USES if is_untrusted(locked) else outdated(locked, resolution, bound)


def catalogue(
    records: Sequence[ImageRecord],
    matrix: Matrix,
    facts: Facts,
    suite: Suite,
    *,
    registry: str = "",
    published: Mapping[str, Published] | None = None,
) -> Catalogue:
    """The catalogue of *records*: the newest torch first, then the newest CUDA.

    :param registry: "registry.example/team/pytorch", if one was named.
    :param published: the images in *registry*, by tag.
    """
    ordered = sorted(records, key=lambda record: _order(record.resolution.cell, matrix))
    tags = [tag_of(record.resolution) for record in ordered]
    users = _users(ordered, tags)
    return Catalogue(
        local=matrix.repository,
        registry=registry,
        images=tuple(
            ListedImage(
                tag=tag,
                aliases=record.aliases,
                resolution=record.resolution,
                locked=record.kept.locked,
                state=state(record.resolution, record.kept, matrix.policy, suite).value,
                digest=record.kept.image,
                reason=reason_of(record.resolution) or record.resolution.why_unavailable,
                limits=tuple(limit_of(limit, facts) for limit in record.resolution.limits),
                gpus=_gpus(record.resolution, facts),
                packages=tuple(_packages(record.kept.locked)),
                layers=tuple(_layers(record, users, tag)),
                runs=_runs(record.kept),
                published=(published or {}).get(tag),
            )
            for tag, record in zip(tags, ordered, strict=True)
        ),
    )


def _order(cell: Cell, matrix: Matrix) -> tuple[object, ...]:
    systems = [choice.name for choice in matrix.os]
    newest = [-number for text in (cell.torch, cell.cuda) for number in (*numbers(text), 0, 0)[:3]]
    return (
        *newest,
        matrix.platforms.index(cell.platform),
        systems.index(cell.os),
        matrix.flavors.index(cell.flavor),
        cell.gpus,
    )


def _gpus(resolution: Resolution, facts: Facts) -> tuple[tuple[str, tuple[str, ...]], ...]:
    archs = resolution.build.archs if resolution.build else ()
    classes = served_classes(archs, facts.gpus, resolution.cell.gpus)
    return tuple(
        (kind.capability, names) for kind in classes if (names := kind.names_on(resolution.cell.platform))
    )


def _packages(locked: LockedCell) -> Iterator[ListedPackage]:
    for wheel in locked.wheels:
        yield ListedPackage(
            system="python", name=wheel.name, version=wheel.version, size=wheel.size, sha256=wheel.sha256
        )
    for part in locked.archives:
        yield ListedPackage(
            system="toolkit", name=part.component, version=part.version, size=part.size, sha256=part.sha256
        )
    for deb in locked.os_packages:
        yield ListedPackage(system="os", name=deb.name, version=deb.version)


def _users(records: Sequence[ImageRecord], tags: Sequence[str]) -> Mapping[Digest, list[str]]:
    """The tags of the images that have a blob, at any position: a registry stores it once."""
    users: dict[Digest, list[str]] = defaultdict(list)
    for tag, record in zip(tags, records, strict=True):
        for digest in {blob.digest for _, blob in record.layers if blob}:
            users[digest].append(tag)
    return users


def _layers(record: ImageRecord, users: Mapping[Digest, Sequence[str]], tag: str) -> Iterator[ListedLayer]:
    for title, blob in record.layers:
        others = [user for user in users[blob.digest] if user != tag] if blob else []
        yield ListedLayer(title=title, blob=blob, images=tuple(others))


def _runs(kept: CellRecord) -> tuple[Run, ...]:
    latest = sorted(kept.reports, key=lambda signed: (signed.report.when or "", signed.name), reverse=True)
    runs = [_run(signed, kept) for signed in latest]
    return tuple(sorted(runs, key=lambda run: (not run.current, not run.gpus)))


def _run(signed: SignedReport, kept: CellRecord) -> Run:
    report, host = signed.report, json.loads(signed.report.host)
    assert report.image is not None  # `reports_in` leaves out those of environments
    capabilities = dict.fromkeys(".".join(map(str, gpu["capability"])) for gpu in hosts.gpus(host))
    return Run(
        file=signed.name,
        image=report.image,
        current=report.image == kept.image,
        same_stack=report.image in [other.image for other in kept.earlier],
        when=report.when or "",
        verdict=report.verdict,
        gpus=hosts.kinds(host),
        capabilities=tuple(capabilities),
        driver=str(host.get("driver", {}).get("driver") or ""),
        signed=signed.signed,
        signers=signed.signers,
        findings=report.findings,
    )
