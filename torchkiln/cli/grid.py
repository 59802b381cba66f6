"""`torchkiln list`, `explain`, `pick`: lists the cells, explains one, and picks those that run on a host."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any, TypeVar

import click

from torchkiln.cli.shared import console, terminal
from torchkiln.cli.shared.options import images_folder, json_option
from torchkiln.cli.shared.selection import CellOptions, cell_selection
from torchkiln.cli.shared.tables import beside, table
from torchkiln.errors import ConfigError, NothingSelected
from torchkiln.locks.lock import by_record_in, untrusted_in
from torchkiln.matrix import facts
from torchkiln.matrix.explain import Explanation, needs, reason, to_json
from torchkiln.matrix.explain import explain as explanation_of
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.gpu_archs import kept_archs, served_classes
from torchkiln.matrix.pick import Candidate, Picked, parse_driver, parse_gpus, refused
from torchkiln.matrix.pick import pick as choose
from torchkiln.matrix.public_record import record_notice, recorded
from torchkiln.matrix.resolve import nearest_options, resolve
from torchkiln.matrix.select import split, with_thin
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell, Resolution, TorchBuild
from torchkiln.model.platform import DEFAULT_PLATFORM
from torchkiln.model.untrusted import USES

_STYLES = {"native": "green", "minor-compat": "yellow", "unavailable": "red"}
T = TypeVar("T")


@click.command("list")
@cell_selection
@json_option
@click.option("--github", is_flag=True, hidden=True)  # an earlier name of `ci matrix`, like --changed-since
@click.option("--changed-since", "since", hidden=True)
@images_folder
def list_command(as_json: bool, github: bool, since: str | None, images: Path, chosen: CellOptions) -> None:
    """List the cells of the matrix, with status, driver, GPU capabilities and tag."""
    if github and as_json:
        raise click.UsageError("--json cannot be used with --github")
    if since is not None and not github:
        raise click.UsageError("--changed-since requires --github")
    cells, matrix, facts = chosen.cells()
    resolutions = [resolve(cell, matrix, facts) for cell in cells]
    if github:
        from torchkiln.cli.ci import matrix_line

        console.say("`list --github` is now `torchkiln ci matrix`")
        terminal.echo(matrix_line(resolutions, images, since))
        return
    if as_json:
        click.echo(json.dumps([_row(resolution, facts, images) for resolution in resolutions], indent=2))
        return
    systems = {cell.os for cell in cells}
    flavors = {cell.flavor for cell in cells}
    header = ["TORCH", "CUDA", "STATUS", "WHEEL", "INDEX", "DRIVER", "CAPABILITIES", "TAG"]
    lines = [_columns(resolution, images) for resolution in resolutions]
    if len(systems) > 1 or len(flavors) > 1:
        header[2:2] = ["FLAVOR", "OS"]
        for line, cell in zip(lines, cells, strict=True):
            line[2:2] = [cell.flavor, cell.os]
    table(header, lines, styles=_STYLES, text=(len(header) - 2, len(header) - 1))


@click.command("explain")
@cell_selection
@json_option
@images_folder
def explain(as_json: bool, images: Path, chosen: CellOptions) -> None:
    """Explain the selected cells: torch build, drivers, GPUs, limits, and the facts with their sources."""
    cells, matrix, facts = chosen.cells(must_name=True)
    explanations = [explanation_of(cell, matrix, facts) for cell in cells]
    if as_json:
        values = [to_json(explanation) | _of_lock(explanation, images) for explanation in explanations]
        click.echo(json.dumps(values[0] if len(values) == 1 else values, indent=2))
        return
    terminal.echo("\n\n".join(_explained(explanation, images) for explanation in explanations))


@click.command("pick")
@cell_selection
@click.option(
    "--driver", required=True, metavar="V", help="the host's driver, 535.104.05, or its branch, 535"
)
@click.option(
    "--gpu", multiple=True, metavar="NAME", help="a GPU (H100, RTX 4090) or its capability (9.0); repeatable"
)
@json_option
def pick(as_json: bool, driver: str, gpu: tuple[str, ...], chosen: CellOptions) -> None:
    """List the images that run with this driver and these GPUs, best first, and why the others do not run.

    Each full image is followed by its thin images for the `gpus` of the matrix.
    """
    faults: dict[str, str] = {}  # message → hint

    def attempt(parse: Callable[[], T], hint: str) -> T | None:
        try:
            return parse()
        except ConfigError as error:
            faults[error.message] = hint
            return None

    parsed_driver = attempt(lambda: parse_driver(driver), "nvidia-smi shows the driver version, 535.104.05")
    gpus = attempt(
        lambda: parse_gpus(split(gpu), facts.load()), "name the GPU by its compute capability: --gpu 9.0"
    )
    if not chosen.platform and any(refused(each) == "aarch64" or each.jetson for each in gpus or ()):
        chosen = replace(chosen, platform=chosen.grid()[0].platforms)
    found = attempt(chosen.cells, "torchkiln list --all shows every cell of the matrix")
    if parsed_driver is None or gpus is None or found is None:
        raise ConfigError.of(faults, hint="; ".join(faults.values()))
    cells, matrix, known = found
    if not chosen.kept_gpus:
        cells = with_thin(cells, matrix)
    choice = choose((resolve(cell, matrix, known) for cell in cells), parsed_driver, gpus)
    if as_json:
        click.echo(json.dumps(_choice_json(choice), indent=2))
    else:
        terminal.echo("\n".join(_choice_lines(choice)))
    if not choice.runs:
        raise NothingSelected("none of these images runs on that host", hint="; ".join(choice.host))


def _row(resolution: Resolution, facts: Facts, images: Path) -> dict[str, Any]:
    """One cell in the JSON of `list`; scripts use it, so keys are only ever added."""
    cell, build = resolution.cell, resolution.build
    classes = served_classes(build.archs, facts.gpus, cell.gpus) if build else ()
    return {
        "torch": cell.torch,
        "cuda": cell.cuda,
        "flavor": cell.flavor,
        "os": cell.os,
        "python": cell.python,
        "tag": tag_of(resolution) if build else None,
        "status": resolution.status.value,
        "reason": reason(resolution),
        "wheel": build.version if build else None,
        "wheel_cuda": build.cuda if build else None,
        "source": build.source.value if build else None,
        "min_driver": resolution.min_driver,
        "full_driver": resolution.full_driver,
        **_more_of(cell),
        "archs": list(kept_archs(build.archs, cell.gpus)) if build else [],
        "capabilities": [kind.capability for kind in classes],
        "nearest": [{"torch": torch, "cuda": cuda} for torch, cuda in resolution.nearest],
        "lockable": resolution.lockable,
        "needs": list(needs(resolution)),
        "recorded": recorded(facts, build, cell.python) if build else None,
        "untrusted": untrusted_in(images, resolution),
        "by_record": list(by_record_in(images, resolution)),
    }


def _more_of(cell: Cell) -> dict[str, Any]:
    """The keys of a thin cell, and of one of another platform."""
    more: dict[str, Any] = {"gpus": list(cell.gpus)} if cell.gpus else {}
    more |= {"own_use": True} if cell.own_use else {}
    return more | ({"platform": cell.platform} if cell.platform != DEFAULT_PLATFORM else {})


def _columns(resolution: Resolution, images: Path) -> list[str]:
    cell, build = resolution.cell, resolution.build
    if build is None:
        return [cell.torch, cell.cuda, resolution.status.value, *"----", resolution.why_unavailable]
    return [
        cell.torch,
        cell.cuda,
        resolution.status.value,
        build.version.partition("+")[2],
        build.source.value,
        resolution.min_driver or "-",
        _codes(kept_archs(build.archs, cell.gpus)),
        tag_of(resolution) + _lock_remark(resolution, images),
    ]


def _lock_remark(resolution: Resolution, images: Path) -> str:
    if untrusted_in(images, resolution):
        return "  (untrusted)"
    return "  (locked by public record)" if by_record_in(images, resolution) else ""


def _codes(archs: Sequence[str]) -> str:
    """`sm_50 sm_90 compute_90` as `5.0 9.0 9.0+PTX`."""
    codes = []
    for arch in archs:
        kind, _, digits = arch.partition("_")
        codes.append(f"{digits[:-1]}.{digits[-1]}" + ("+PTX" if kind == "compute" else ""))
    return " ".join(codes)


def _of_lock(explanation: Explanation, images: Path) -> dict[str, Any]:
    names = by_record_in(images, explanation.resolution)
    return {
        **({"untrusted": True} if untrusted_in(images, explanation.resolution) else {}),
        **({"by_record": list(names)} if names else {}),
    }


def _explained(explanation: Explanation, images: Path) -> str:
    resolution = explanation.resolution
    cell, build = resolution.cell, resolution.build
    on = f", {cell.platform}" if cell.platform != DEFAULT_PLATFORM else ""
    lines = [
        _field(
            "cell",
            f"torch {cell.torch}, CUDA {cell.cuda}, {cell.flavor}, {cell.os} (Python {cell.python}){on}",
        ),
        _field("status", f"{resolution.status.value}: {explanation.reason}"),
    ]
    if build:
        libraries = f"cuDNN {build.cudnn}" + (f", NCCL {build.nccl}" if build.nccl else "")
        lines += [
            _field("tag", explanation.tag or ""),
            _field("aliases", ", ".join(explanation.aliases) or "none"),
            _field("wheel", f"torch {build.version}, {_served_by(build)}; CUDA {build.cuda}, {libraries}"),
            _field("drivers", f"{resolution.min_driver} or newer ({explanation.require_cuda})"),
            _field("", f"{resolution.full_driver} or newer: without CUDA's compatibility mode"),
            _field("GPU code", " ".join(explanation.archs)),
            *_listed(
                "runs on", [f"{capability}  {', '.join(names)}" for capability, names in explanation.gpus]
            ),
        ]
    if other := explanation.otherwise:
        this, that = ("default-index", "native")[:: 1 if explanation.prefer == "default-index" else -1]
        both = [f"{this} (this matrix): {_in_short(resolution)}", f"{that}: {_in_short(other)}"]
        lines += _listed("prefer", both)
    others = [f"{each.version}, {_served_by(each)}: {_codes(each.archs)}" for each in resolution.alternatives]
    lines += _listed("not used", others)
    lines += _listed("needs", [" and ".join(explanation.needs)] if explanation.needs else [])
    if explanation.recorded:
        lines += [_field("recorded", f"torch's wheel for this Python: sha256 {explanation.recorded}")]
    if untrusted_in(images, resolution):
        lines += [_field("lock", USES)]
    if names := by_record_in(images, resolution):
        lines += [_field("lock", record_notice(names))]
    lines += _listed("requires", [" ".join(resolution.requirements)] if resolution.requirements else [])
    lines += _listed("bounds", [f"{bound.requirement}  [{bound.fact}]" for bound in resolution.constraints])
    lines += _listed("limits", [f"{text}  [{fact}]" for fact, text in explanation.limits])
    lines += _listed("nearest", nearest_options(resolution))
    lines += _listed("facts", [f"{fact}: {', '.join(ids)}" for fact, ids in explanation.citations])
    lines += _listed("sources", [f"{one.id} ({one.trust}): {one.what}" for one in explanation.sources])
    return "\n".join(lines)


def _in_short(resolution: Resolution) -> str:
    build = resolution.build
    return resolution.status.value + (f", {build.version}, {_served_by(build)}" if build else "")


def _served_by(build: TorchBuild) -> str:
    return "from the default index" if build.source.value == "default-index" else "from PyTorch's own index"


def _field(name: str, value: str) -> str:
    return beside(f"{name:<10} ", value, terminal.columns(err=False))


def _listed(name: str, values: Sequence[str]) -> list[str]:
    return [_field("" if index else name, value) for index, value in enumerate(values)]


def _choice_lines(choice: Picked) -> list[str]:
    """The images, and why others do not run; what several share is said once."""
    lines, width = _listed("host", choice.host), terminal.columns(err=False)
    counted = Counter(text for offer in choice.runs for text in offer.conditions)
    notes = dict(zip((text for text, count in counted.items() if count > 1), ascii_lowercase, strict=False))
    for rank, offer in enumerate(choice.runs, 1):
        remarks = "; ".join(notes.get(text, text) for text in offer.conditions)
        remarks = f"  ({remarks})" if remarks else ""
        lines.append(beside(f"{rank:>2}. ", f"{_name(offer)}{remarks}", width))
    lines += [beside(f"  {letter}: ", text, width) for text, letter in notes.items()]
    if choice.fails and not choice.host:
        lines += ["", "does not run:"]
        named: dict[str, list[str]] = {}
        for one in choice.fails:
            named.setdefault("; ".join(one.obstacles), []).append(_name(one))
        for why, names in named.items():
            text = f"{names[0]}: {why}" if len(names) == 1 else f"{why}: {', '.join(names)}"
            lines.append(beside("    ", text, width))
    return lines


def _name(offer: Candidate) -> str:
    resolution = offer.resolution
    cell = resolution.cell
    unbuilt = f"{cell.torch}-cuda{cell.cuda} ({cell.flavor}, {cell.os})"
    return tag_of(resolution) if resolution.build else unbuilt


def _choice_json(choice: Picked) -> dict[str, Any]:
    def to_dict(offer: Candidate) -> dict[str, Any]:
        resolution = offer.resolution
        cell = resolution.cell
        return {
            "tag": tag_of(resolution) if resolution.build else None,
            "torch": cell.torch,
            "cuda": cell.cuda,
            "flavor": cell.flavor,
            "os": cell.os,
            "status": resolution.status.value,
            **_more_of(cell),
            "lockable": resolution.lockable,
            "against": list(offer.obstacles),
            "minding": list(offer.conditions),
        }

    runs, fails = (list(map(to_dict, offers)) for offers in (choice.runs, choice.fails))
    return {"host": list(choice.host), "runs": runs, "fails": fails}
