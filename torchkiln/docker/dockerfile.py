"""Renders the Dockerfile of an ImagePlan and the files beside it in images/<tag>/, and docker-bake.json."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from torchkiln.errors import ConfigError
from torchkiln.matrix.os_tools import packages_of
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.operating_system import SYSTEMS
from torchkiln.model.plan import ImagePlan, OverlayFile, WheelLayer
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.model.recipe import PREFIX, USER
from torchkiln.plan.cuda_toolkit import home
from torchkiln.plan.plan import CONSTRAINTS, GENERATED, IMAGE_JSON
from torchkiln.util.files import pretty_json
from torchkiln.util.places import how_to_restore
from torchkiln.util.strict_json import read_file
from torchkiln.util.versions import minor_of
from torchkiln.util.wheel_names import parse_wheel_filename

ENTRY = "Dockerfile.j2"
_MOST_MOUNTS = 8  # maximum of wheels that a step mounts one by one; more are copied in a stage of their own
_WIDTH = 110
_LIMIT = 1 << 20  # bytes of a template


@dataclass(frozen=True, kw_only=True, slots=True)
class _WheelStep:
    """The installation of a layer's wheels; `stage` is empty if the wheels are mounted one by one."""

    title: str
    wheels: tuple[LockedWheel, ...]
    stage: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Copy:
    """Files of one mode that go to one folder."""

    mode: str
    sources: tuple[str, ...]
    folder: str


def load_templates(folder: Path, project: Path | None = None) -> dict[str, str]:
    """The templates below *folder*, by their path in it.

    :param project: the folder of a matrix; the templates in its templates/ are added, and replace those of
        the same name.
    :raises ConfigError: the main template is missing, or a template is a symbolic link or not UTF-8.
    """
    found = _texts(folder)
    if project is not None:
        found |= _texts(project / "templates")
    if ENTRY not in found:
        raise ConfigError(f"{folder / ENTRY}: no such file", hint=how_to_restore("templates"))
    return found


def _texts(folder: Path) -> dict[str, str]:
    """The templates below *folder*. Links are refused, because they could lead to any file of the host."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*.j2"))]:
        if path.is_symlink():
            raise ConfigError(f"{path} is a symbolic link", hint="replace it with a regular file or folder")
        if path == folder:
            continue
        try:
            text = read_file(path, _LIMIT, follow=False).decode().replace("\r\n", "\n")
            found[path.relative_to(folder).as_posix()] = text
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}", hint="replace it with a regular file") from error
        except ValueError as error:
            raise ConfigError(f"{path}: {error}", hint="save the template as UTF-8") from error
    return found


def render(plan: ImagePlan, templates: Mapping[str, str], os_packages: Sequence[str]) -> str:
    """The Dockerfile of *plan*; *os_packages* are the packages that the base must have.

    Templates of a project are not trusted: they can read the plan, but cannot call anything unsafe.

    :raises ConfigError: a template is invalid or unsafe, or the lock has no pip to install with.
    """
    demand_full(plan.locked)
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.DictLoader(templates),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["quote"] = quote
    environment.filters["exec"] = lambda words: json.dumps(list(words))
    environment.filters["wrap"] = _wrap
    cell = plan.locked.resolution.cell
    try:
        return environment.get_template(ENTRY).render(
            plan=plan,
            cell=cell,
            config=plan.config,
            docker_base=SYSTEMS[cell.os].docker_base,
            docker_user=SYSTEMS[cell.os].docker_user,
            os_packages=sorted(os_packages),
            tools=sorted(packages_of(plan.locked.tools.name)) if plan.locked.tools else (),
            prefix=PREFIX,
            site=plan.locked.python.site,
            pip=_pip(plan),
            pip_options=" ".join(pip_options(plan.locked)),
            foreign=[wheel.name for wheel in plan.locked.wheels if wheel.index is not Source.DEFAULT],
            wheel_layers=list(_wheel_steps(plan)),
            copies=list(_copies(file for file in plan.overlay.files if file.path not in GENERATED)),
            toolkit=_tree(plan),
            links=plan.overlay.links,
            link_folders=sorted({str(PurePosixPath(link.path).parent) for link in plan.overlay.links}),
            constraints=_generated(plan)[CONSTRAINTS].decode(),
            user=USER,
        )
    except (jinja2.TemplateError, OverflowError) as error:  # range() beyond the limit: OverflowError
        raise ConfigError(f"templates: {error}", hint="fix the template") from error


def demand_full(locked: LockedCell) -> None:
    """Check that a Dockerfile can build the image of *locked*.

    :raises ConfigError: it is a thin image, or for another platform, or has another Python than its system.
    """
    how = "build it with the embedded engine; `torchkiln build TAG --load` puts it into Docker"
    for found, what in (
        (locked.standalone, "an image with a standalone Python"),
        (locked.device_code, "a thin image (--gpus)"),
        (locked.platform.suffix, f"an image for {locked.platform.name}"),
    ):
        if found:
            raise ConfigError(f"{tag_of(locked.resolution)}: a Dockerfile cannot build {what}", hint=how)


def render_folder(
    plan: ImagePlan, templates: Mapping[str, str], os_packages: Sequence[str]
) -> dict[str, bytes]:
    """The generated files of images/<tag>/, by path, without lock.json and requirements.txt.

    :raises ConfigError: as `render` does.
    """
    return {
        "Dockerfile": render(plan, templates, os_packages).encode(),
        "image.json": _generated(plan)[IMAGE_JSON],
    }


def quote(value: str) -> str:
    """*value* as a quoted word of ENV or LABEL, in which nothing is expanded.

    :raises ConfigError: it contains a line break.
    """
    if "\n" in value or "\r" in value:
        raise ConfigError(
            f"a label or variable contains a line break: {value!r}", hint="write it in one line"
        )
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def pip_options(locked: LockedCell) -> tuple[str, ...]:
    """The options with which `pip download` accepts the locked wheels on any host."""
    version = locked.base.python
    abi = "cp" + "".join(version.split(".")[:2])  # pip also accepts the ABI tags abi3 and none
    return (
        *("--require-hashes", "--no-deps", "--only-binary", ":all:"),
        *("--python-version", version, "--implementation", "cp", "--abi", abi),
        *(word for name in _platforms(locked.wheels) for word in ("--platform", name)),
    )


def _platforms(wheels: Iterable[LockedWheel]) -> list[str]:
    """The fewest platform tags that match all *wheels*; pip itself adds only "any"."""
    tags = [{tag.platform for tag in parse_wheel_filename(wheel.filename)[3]} for wheel in wheels]
    left = [platforms for platforms in tags if "any" not in platforms]
    found = []
    while left:
        counts = Counter(name for platforms in left for name in platforms)
        found.append(min(counts, key=lambda name: (-counts[name], name)))
        left = [platforms for platforms in left if found[-1] not in platforms]
    return sorted(found)


def _pip(plan: ImagePlan) -> str:
    """The file name of the locked pip, which runs from its wheel and installs all wheels, itself included."""
    for wheel in plan.locked.wheels:
        if wheel.name == "pip":
            return wheel.filename
    raise ConfigError(f"the lock of {plan.tag} has no pip", hint="add pip to `packages` in matrix.yaml")


def _tree(plan: ImagePlan) -> str:
    """The image's folder for a toolkit from NVIDIA's archives, "usr/local/cuda-12.1"; empty without one."""
    toolkit = plan.locked.resolution.toolkit
    return home(toolkit) if toolkit and plan.locked.archives else ""


def _generated(plan: ImagePlan) -> dict[str, bytes]:
    return {file.path: file.data for file in plan.overlay.files if file.path in GENERATED}


def _wheel_steps(plan: ImagePlan) -> Iterator[_WheelStep]:
    for number, layer in enumerate(plan.of(WheelLayer), start=1):
        stage = f"wheels-{number}" if len(layer.wheels) > _MOST_MOUNTS else ""
        yield _WheelStep(title=layer.title, wheels=layer.wheels, stage=stage)


def _wrap(words: Iterable[str]) -> list[str]:
    """*words* in lines of a readable length."""
    return textwrap.wrap(" ".join(words), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _copies(files: Iterable[OverlayFile]) -> Iterator[_Copy]:
    """*files* grouped by mode and folder: a COPY sets one mode, and sets it on copied folders, too."""

    def place(file: OverlayFile) -> tuple[str, str]:
        return str(PurePosixPath(file.path).parent), f"{file.mode:04o}"

    ordered = sorted(files, key=lambda file: (place(file), file.path))
    for (folder, mode), group in groupby(ordered, key=place):
        yield _Copy(mode=mode, sources=tuple(file.path for file in group), folder=f"/{folder}/")


BAKE_FILE = "docker-bake.json"


def bake(plans: Sequence[ImagePlan], repository: str) -> bytes:
    """The bytes of the bake file. Paths in it are relative to the folder that has images/ and rootfs/.

    Users can set these bake variables: REPOSITORY, WHEELS (a folder), BASE_<OS>, and for devel images
    TOOLKIT_<CUDA>, a folder that `torchkiln plan toolkit` fills.
    """
    groups: dict[str, list[str]] = {"default": []}
    for plan in plans:
        cell = plan.locked.resolution.cell
        # All groups except those of flavors can be built with the default index alone. A target that needs
        # NVIDIA's archives is only in the group of its flavor; a target that was locked by public record is
        # in none.
        names = ("default", f"torch-{minor_of(cell.torch)}", f"cuda-{cell.cuda}", cell.flavor, cell.os)
        if plan.locked.by_record:
            continue
        for group in (cell.flavor,) if plan.locked.archives else names:
            groups.setdefault(_target(group), []).append(_target(plan.tag))
    systems = sorted({plan.locked.resolution.cell.os for plan in plans})
    variables = {"REPOSITORY": repository, "WHEELS": "wheels"}
    variables |= {_base(system): SYSTEMS[system].docker_base for system in systems}
    with_archives = [plan for plan in plans if plan.locked.archives]
    variables |= {_folder(plan): f"toolkit-{plan.locked.resolution.cell.cuda}" for plan in with_archives}
    return pretty_json(
        {
            "variable": {name: {"default": value} for name, value in variables.items()},
            "group": {name: {"targets": targets} for name, targets in sorted(groups.items())},
            "target": {_target(plan.tag): _bake_target(plan) for plan in plans},
        }
    )


def _bake_target(plan: ImagePlan) -> dict[str, Any]:
    return {
        "context": f"images/{plan.tag}",
        "contexts": {"wheels": "${WHEELS}", "rootfs": "rootfs", **_toolkit(plan)},
        "args": {
            "BASE": f"${{{_base(plan.locked.resolution.cell.os)}}}",
            "SOURCE_DATE_EPOCH": str(plan.epoch),
        },
        "tags": [f"${{REPOSITORY}}:{tag}" for tag in (plan.tag, *plan.aliases)],
        "platforms": [LINUX_AMD64.name],
    }


def _toolkit(plan: ImagePlan) -> dict[str, str]:
    """The build context with NVIDIA's toolkit, if the lock has its archives."""
    return {"toolkit": f"${{{_folder(plan)}}}"} if plan.locked.archives else {}


def _folder(plan: ImagePlan) -> str:
    return f"TOOLKIT_{plan.locked.resolution.cell.cuda.replace('.', '_')}"


def _target(name: str) -> str:
    """*name* with only the characters that bake allows: letters, digits, `-` and `_`."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)


def _base(system: str) -> str:
    return f"BASE_{re.sub(r'[^A-Z0-9]', '_', system.upper())}"
