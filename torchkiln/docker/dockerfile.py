"""ImagePlan -> Dockerfile, and the other files of images/<tag>/ that a build by it needs; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath

from torchkiln.errors import ConfigError
from torchkiln.matrix.os_tools import packages_of
from torchkiln.model.operating_system import SYSTEMS
from torchkiln.model.plan import ImagePlan, OverlayFile, OverlayLink, ProgramLayer, WheelLayer
from torchkiln.model.recipe import PREFIX, USER, site
from torchkiln.plan.cuda_toolkit import home
from torchkiln.plan.micromamba import program_path
from torchkiln.plan.plan import GENERATED

ENTRY = "Dockerfile.j2"
_BESIDE = "components"  # the folder of what components bring that is neither wheel nor program


@dataclass(frozen=True, kw_only=True, slots=True)
class _WheelLayer:
    title: str
    requirements: str  # file name under requirements/


@dataclass(frozen=True, kw_only=True, slots=True)
class _Copy:
    """Files of one mode that go to one folder."""

    mode: str
    sources: tuple[str, ...]
    folder: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Program:
    """A program's file, which comes by a build context, and what goes with it."""

    title: str
    source: str
    path: str
    copies: tuple[_Copy, ...]
    links: tuple[OverlayLink, ...]
    folders: tuple[tuple[str, int], ...]


def load_templates(folder: Path) -> dict[str, str]:
    """The templates below *folder* by their name there: the one function here that reads files.

    :raises ConfigError: the main template is missing.
    """
    found = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.j2")}
    if ENTRY not in found:
        raise ConfigError(
            f"{folder / ENTRY}: no such file", hint="torchkiln runs from its checkout; clone it anew"
        )
    return found


def render(plan: ImagePlan, templates: Mapping[str, str], os_packages: Sequence[str]) -> str:
    """The Dockerfile of *plan*; *os_packages* are what the base must hold.

    :raises ConfigError: a template is wrong, or the lock has no pip to install with.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.DictLoader(templates),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["quote"] = quote
    environment.filters["exec"] = lambda words: json.dumps(list(words))
    cell = plan.locked.resolution.cell
    try:
        return environment.get_template(ENTRY).render(
            plan=plan,
            cell=cell,
            config=plan.config,
            docker_base=SYSTEMS[cell.os].docker_base,
            os_packages=sorted(os_packages),
            tools=sorted(packages_of(plan.locked.tools.name)) if plan.locked.tools else (),
            prefix=PREFIX,
            site=site(cell.python),
            pip=_pip(plan),
            wheel_layers=[
                _WheelLayer(title=layer.title, requirements=name) for name, layer in _requirement_files(plan)
            ],
            copies=list(_copies(file for file in plan.overlay.files if file.path not in GENERATED)),
            beside=_BESIDE,
            toolkit=_tree(plan),
            links=plan.overlay.links,
            link_folders=sorted({str(PurePosixPath(link.path).parent) for link in plan.overlay.links}),
            programs=[_program(layer) for layer in plan.of(ProgramLayer)],
            generated=[PurePosixPath(path).name for path in GENERATED],
            user=USER,
        )
    except jinja2.TemplateError as error:
        raise ConfigError(f"templates: {error}", hint="mend the template") from error


def render_folder(
    plan: ImagePlan, templates: Mapping[str, str], os_packages: Sequence[str]
) -> dict[str, bytes]:
    """Every generated file of images/<tag>/ by its path there, but for the lock's own.

    :raises ConfigError: as `render` does.
    """
    generated = {PurePosixPath(f.path).name: f.data for f in plan.overlay.files if f.path in GENERATED}
    return {
        "Dockerfile": render(plan, templates, os_packages).encode(),
        **generated,
        **{f"requirements/{name}": _requirements(layer) for name, layer in _requirement_files(plan)},
        **{f"{_BESIDE}/{file.path}": file.data for layer in plan.of(ProgramLayer) for file in layer.files},
    }


def quote(value: str) -> str:
    """*value* as a quoted word of ENV or LABEL: nothing in it is expanded.

    :raises ConfigError: it holds a line break, which no such word can.
    """
    if "\n" in value or "\r" in value:
        raise ConfigError(f"a label or variable holds a line break: {value!r}", hint="tell it in one line")
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def _pip(plan: ImagePlan) -> str:
    """The locked pip's file name: it installs all wheels, itself included, from within its own wheel."""
    for wheel in plan.locked.wheels:
        if wheel.name == "pip":
            return wheel.filename
    raise ConfigError(f"the lock of {plan.tag} has no pip", hint="add pip to `packages` in matrix.yaml")


def _tree(plan: ImagePlan) -> str:
    """Where the toolkit lies that has a context of its own, "usr/local/cuda-12.1"; empty: none has."""
    toolkit = plan.locked.resolution.toolkit
    return home(toolkit) if toolkit and plan.locked.archives else ""


def _requirement_files(plan: ImagePlan) -> Iterator[tuple[str, WheelLayer]]:
    """Each wheel layer with the name of its requirements file, in order."""
    for number, layer in enumerate(plan.of(WheelLayer), start=1):
        told = layer.wheels[0].name if len(layer.wheels) == 1 else re.split(r":| \(", layer.title)[0]
        yield f"{number:02}-{re.sub(r'[^a-z0-9]+', '-', told.lower())}.txt", layer


def _requirements(layer: WheelLayer) -> bytes:
    lines = (f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in layer.wheels)
    return "".join(lines).encode()


def _program(layer: ProgramLayer) -> _Program:
    return _Program(
        title=layer.title,
        source=layer.program.filename,
        path=program_path(layer.program),
        copies=tuple(_copies(layer.files)),
        links=layer.links,
        folders=layer.folders,
    )


def _copies(files: Iterable[OverlayFile]) -> Iterator[_Copy]:
    """*files* by mode and folder: COPY sets one mode, and would set it on folders too."""

    def place(file: OverlayFile) -> tuple[str, str]:
        return str(PurePosixPath(file.path).parent), f"{file.mode:04o}"

    ordered = sorted(files, key=lambda file: (place(file), file.path))
    for (folder, mode), group in groupby(ordered, key=place):
        yield _Copy(mode=mode, sources=tuple(file.path for file in group), folder=f"/{folder}/")
