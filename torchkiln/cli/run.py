"""`torchkiln run`: a command in a built image, without a container engine or in Docker's."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import layout_option, parse_size
from torchkiln.cli.shared.runtime_options import EngineLines, runtime_option
from torchkiln.cli.shared.selection import Chosen, selection
from torchkiln.errors import ConfigError
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.runtimes.command import Bind, Command, RuntimeSettings, Streams, parse_user
from torchkiln.runtimes.engine_images import DOCKER
from torchkiln.runtimes.runtime import ImageSource
from torchkiln.runtimes.table import RUNTIMES
from torchkiln.runtimes.unpacked import image_user
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store


class _WithTail(click.Command):
    """Keeps what stands behind `--` apart: it is the command, however much it looks like a TAG."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["torchkiln.tail"] = args[:at], tuple(args[at + 1 :])
        return super().parse_args(ctx, args)


@click.command(
    "run",
    cls=_WithTail,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@selection
@layout_option()
@runtime_option(interactive=True)
@click.option("--user", default=None, metavar="UID[:GID]", help="who runs it; else as the image says")
@click.option("--bind", "binds", multiple=True, metavar="SRC:DST[:ro]", help="a file or folder of the host")
@click.option("--env", "-e", "variables", multiple=True, metavar="NAME=VALUE")
@click.option("--workdir", "-w", default=None, help="else as the image says")
@click.option("--shm-size", default="1g", show_default=True, help="of /dev/shm")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path, file_okay=False),
    help="a folder of the host at /workspace; docker: ./workspace if it is there",
)
@click.option("--publish", "-p", "ports", multiple=True, metavar="[[IP:]PORT:]PORT", help="docker: a port")
@click.option(
    "--gpus", metavar="all|none|N|device=ID,ID", help="GPUs; all if there are some; a choice of them: docker"
)
@click.option("--entrypoint/--no-entrypoint", default=True, help="start through the image's entrypoint")
@click.argument("tag", required=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context,
    chosen: Chosen,
    output: Path,
    runtime: str,
    user: str | None,
    binds: tuple[str, ...],
    variables: tuple[str, ...],
    workdir: str | None,
    shm_size: str,
    workspace: Path | None,
    ports: tuple[str, ...],
    gpus: str | None,
    entrypoint: bool,
    tag: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND in the image TAG (or the cell that --torch and --cuda name) of the layout.

    Everything behind -- is COMMAND; without one, what the image starts by itself. What it writes is forgotten
    when it ends, but for binds. Ends with the command's own code.

    With --runtime docker the image is loaded into the engine if it is not there, and the `docker run` line
    that does the same is shown. TAG may then be docker:NAME, an image that is only in the engine. Without
    a COMMAND port 8888 is published to this host alone, and 22 as 2222 if SSH_PUBLIC_KEY is set.
    """
    command = (*command, *ctx.meta.get("torchkiln.tail", ()))
    if chosen.any:
        if tag is not None:
            raise ConfigError(f"both {tag!r} and a cell are named", hint="put -- before the command")
        tag = chosen.tag("run")
    started_by = RUNTIMES[runtime]
    if not started_by.in_engine and (ports or (tag or "").startswith(DOCKER)):
        raise click.UsageError("--publish and docker:NAME are for --runtime docker")
    settings = RuntimeSettings(env=tuple(_variables(variables)), gpus=gpus, shm_size=parse_size(shm_size))
    asked = Command(
        argv=command,
        entrypoint=entrypoint,
        user=user,
        workdir=workdir,
        binds=parse_binds((*binds, *([f"{workspace}:/workspace"] if workspace else []))),
        ports=ports,
    )
    source = ImageSource(
        ref=tag,
        layout=output,
        store=Store(cache_root(), on_wait=console.waiting),
        repository=lambda: chosen.grid()[0].repository,
    )
    started_by.check(asked, settings)
    if not started_by.in_engine:
        source = replace(source, image=source.read())
        parse_user(user or image_user(source.read()))  # before the image is unpacked
    image = started_by.ready(source, settings, _Listener())
    streams = Streams(stdin=sys.stdin.buffer, stdout=sys.stdout.buffer, stderr=sys.stderr.buffer)
    sys.exit(image.passed_through(asked, streams))


class _Listener(EngineLines):
    """As `run` says it."""

    def unpacks(self, image: ImageOnDisk, *, there: bool) -> None:
        if not there:
            click.echo(f"run: unpacking {image.ref} once", err=True)


def parse_binds(texts: Sequence[str]) -> tuple[Bind, ...]:
    """`SRC:DST[:ro|:rw]` as binds; writable unless `ro`, as Docker's -v.

    :raises ConfigError: one has another form; all such are named.
    """
    faults, found = [], []
    for text in texts:
        match = re.fullmatch(r"([^:]+):(/[^:]*)(?::(ro|rw))?", text)
        if match:
            source, target, mode = match.groups()
            found.append(Bind(source=Path(source), target=target, writable=mode != "ro"))
        else:
            faults.append(f"--bind {text}: not SRC:DST or SRC:DST:ro")
    if faults:
        raise ConfigError.of(faults)
    return tuple(found)


def _variables(texts: Sequence[str]) -> Sequence[str]:
    if faults := [f"--env {text}: not NAME=VALUE" for text in texts if "=" not in text]:
        raise ConfigError.of(faults)
    return texts
