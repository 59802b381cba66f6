"""Defines the options that several commands share, and parses their values."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from torchkiln.errors import ConfigError
from torchkiln.matrix import mirrors
from torchkiln.model.layer import DEFAULT_FORMAT, LAYER_FORMATS
from torchkiln.oci.owned import demand_own_layout
from torchkiln.util.files import named
from torchkiln.util.places import IMAGES, INSTALLED, MATRIX
from torchkiln.vault import VARIABLE as VAULTS

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
Decorator = Callable[[Any], Any]


class Named(click.Path):
    """A path. Only the user's own may lead through symbolic links: a default is in a folder of strangers."""

    def __init__(self, check: Callable[[Path], object] = lambda _: None, **kind: bool) -> None:
        super().__init__(path_type=Path, **kind)
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        self._check(path)
        if ctx and param and ctx.get_parameter_source(param.name or "") is ParameterSource.DEFAULT:
            return path
        return named(path) if self.dir_okay else named(path.parent) / path.name


FILE = Named(dir_okay=False)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
FOLDER = Named(file_okay=False)
_HERE = Path("matrix.yaml")


def options(*decorators: Decorator) -> Decorator:
    """One decorator that adds several options, which `--help` shows in this order."""

    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def gathered(name: str, make: type[Any], *decorators: Decorator, without: Container[str] = ()) -> Decorator:
    """One decorator that adds options; the command gets their values together, in *name*, a *make*.

    :param make: a data class whose fields have the names of the options.
    :param without: the fields that have no option.
    """
    fields = [each.name for each in dataclasses.fields(make) if each.init and each.name not in without]

    def decorate(command: Any) -> Any:
        @functools.wraps(command)
        def with_values(*arguments: Any, **values: Any) -> Any:
            values[name] = make(**{field: values.pop(field) for field in fields})
            return command(*arguments, **values)

        return options(*decorators)(with_values)

    return decorate


def nearest_matrix() -> Path:
    """matrix.yaml of the current folder if it exists, else torchkiln's own."""
    return _HERE if _HERE.exists() else MATRIX


def _images() -> Path:
    """images/ of the current folder if it exists, else the one beside the matrix; not an installation's."""
    context = click.get_current_context(silent=True)
    named = context.params.get("matrix_file") if context else None
    here, beside = Path("images"), (named or nearest_matrix()).parent / "images"
    return here if here.exists() or (INSTALLED and beside == IMAGES) else beside


def layout_option(text: str = "the OCI layout that holds the image", *, owned: bool = True) -> Decorator:
    """The option --output, an OCI layout; *owned*: refuse a layout that other users can change."""
    kind = Named(check=demand_own_layout, file_okay=False) if owned else FOLDER
    return click.option("--output", type=kind, default=Path("dist"), show_default=True, help=text)


def _use_mirror(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
    """Set TORCHKILN_MIRROR for this command."""
    if name is not None:
        mirrors.find(name, os.environ)
        ctx.with_resource(variable(mirrors.NAME, name))


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable in the `with` block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


mirror_option = click.option(
    "--mirror",
    metavar="NAME",
    expose_value=False,
    callback=_use_mirror,
    help="use the package index and archives of this public mirror, such as tuna",
)


def _use_vaults(ctx: click.Context, _: click.Parameter, names: tuple[str, ...]) -> None:
    """Add *names* to TORCHKILN_VAULT for this command, before those of the environment."""
    if spaced := next((name for name in names if len(name.split()) != 1), None):
        raise ConfigError(f"--vault {spaced!r}: a name cannot have spaces")
    if names:
        ctx.with_resource(variable(VAULTS, " ".join((*names, os.environ.get(VAULTS, "")))))


vault_option = click.option(
    "--vault",
    metavar="FOLDER|oci://REPOSITORY",
    multiple=True,
    expose_value=False,
    callback=_use_vaults,
    help="take files from this vault, before the index and the archive are asked; repeatable",
)


def _matrix(default: Callable[[], Path], text: str) -> Decorator:
    return click.option(
        "--matrix", "matrix_file", type=FILE, default=default, show_default="matrix.yaml", help=text
    )


matrix_option = _matrix(nearest_matrix, "the matrix of versions; if the file is missing, torchkiln's own")
#: For commands that change the matrix: not the one of an installation.
own_matrix_option = _matrix(lambda: _HERE if INSTALLED else nearest_matrix(), "the matrix of versions")
images_folder = click.option(
    "--images",
    type=FOLDER,
    default=_images,
    show_default="images",
    help="the folder of locks and Dockerfiles",
)
suite_option = click.option(
    "--suite", "suite_folder", type=FOLDER, help="use the smoke tests of this folder instead of torchkiln's"
)
plain_http_option = click.option("--plain-http", is_flag=True, help="use http for a remote registry")
gpus_option = click.option(
    "--gpus",
    metavar="all|none|N|device=ID,ID",
    help="GPUs to use, by default all if there are any; N and device= need an engine",
)
shm_size_option = click.option("--shm-size", default="1g", show_default=True, help="the size of /dev/shm")
json_option = click.option("--json", "as_json", is_flag=True, help="print JSON")
quiet_option = click.option("--quiet", "-q", is_flag=True, help="print no progress and no summary")
layer_format_option = click.option(
    "--layer-format",
    type=click.Choice(LAYER_FORMATS),
    default=DEFAULT_FORMAT,
    show_default=True,
    help="layer compression; zstd layers are smaller and faster to pull, and have other digests",
)
format_option = click.option(
    "--format",
    "form",
    type=click.Choice(("oci", "oci-archive", "docker-archive")),
    default="oci",
    show_default=True,
    help="also write an archive beside the layout: NAME.FORMAT.tar",
)
locked_option = click.option(
    "--locked", is_flag=True, help="fail (exit 6) unless base and tools match the lock"
)
smoke_option = click.option(
    "--smoke/--no-smoke",
    default=None,
    envvar="TORCHKILN_SMOKE",
    help="run the smoke tests in each image, or none; exit 10 if one fails. --smoke: it is also an error if"
    " this host cannot run them  [default: run them if the host can]",
)
upgrade_option = click.option(
    "--upgrade",
    multiple=True,
    is_flag=False,
    flag_value="*",
    metavar="[PACKAGE]",
    help="upgrade this package, or without a name every package, to the newest version that fits",
)
as_of_option = click.option(
    "--as-of", metavar="DATE", help="ignore packages uploaded on this day (UTC) or later  [default: today]"
)
only_option = click.option("--only", multiple=True, metavar="ID", help="run only this check; repeatable")
limit_option = click.option(
    "--limit",
    type=float,
    default=1800.0,
    show_default=True,
    metavar="SECONDS",
    help="the time limit: for all checks, or for each check of a project",
)
nonce_option = click.option(
    "--nonce", metavar="WORD", help="a word to store in the report, for `gate --nonce`"
)


def refuse(ctx: click.Context, names: Container[str], why: str) -> None:
    """:raises click.UsageError: one of the parameters *names* is used."""
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        off = ctx.params.get(parameter.name or "") is False  # such as --no-smoke
        if parameter.name in names and given and not off:
            shown = "a TAG" if isinstance(parameter, click.Argument) else parameter.opts[0]
            raise click.UsageError(f"{shown} {why}")


def parse_size(text: str, option: str = "--shm-size") -> int:
    """`64m`, `1g`, the value of *option*, as bytes.

    :raises ConfigError: it is not a valid size.
    """
    match = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    if not match or int(match[1]) == 0:
        raise ConfigError(f"{option} {text}: not a valid size", hint="for example: 64m or 1g")
    return int(match[1]) * _UNITS[match[2]]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """How images are uploaded, and what is printed."""

    plain_http: bool
    licence_confirmed: bool
    jobs: int
    as_json: bool
    quiet: bool


_licence_option = click.option(
    "--licence-confirmed",
    is_flag=True,
    help="for images built with --own-use: confirm that you have the right to distribute them",
)
upload_options = gathered(
    "upload",
    Upload,
    plain_http_option,
    _licence_option,
    click.option("--jobs", type=click.IntRange(1, 32), default=4, show_default=True, help="parallel uploads"),
    click.option("--json", "as_json", is_flag=True, help="print a JSON object for each image"),
    quiet_option,
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PushTo:
    """Where images are pushed to without the gate."""

    target: str | None  # REGISTRY/REPOSITORY; None: nowhere
    tags: tuple[str, ...]
    plain_http: bool
    licence_confirmed: bool
    jobs: int = 4

    def __post_init__(self) -> None:
        if not self.target and (self.tags or self.plain_http or self.licence_confirmed):
            raise click.UsageError("--tag, --plain-http and --licence-confirmed require --to")


def push_to_options(*, required: bool) -> Decorator:
    """The options of a project that give a PushTo, `to`."""
    return gathered(
        "to",
        PushTo,
        click.option(
            "--to",
            "target",
            required=required,
            metavar="REGISTRY/REPOSITORY",
            help="push the image there, as `torchkiln push` does",
        ),
        click.option(
            "--tag",
            "tags",
            multiple=True,
            metavar="NAME",
            help="push under this tag; repeatable  [default: unproven-NAME]",
        ),
        plain_http_option,
        _licence_option,
        without=("jobs",),
    )
