"""`torchkiln run`: runs a command in a built image, without a container engine or in Docker."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from torchkiln.cli.shared import console
from torchkiln.cli.shared.image_names import NamedImage, locate
from torchkiln.cli.shared.options import FOLDER, gpus_option, layout_option, parse_size, shm_size_option
from torchkiln.cli.shared.runtime_options import EngineLines, runtime_option
from torchkiln.cli.shared.selection import CellOptions, selection_for_running
from torchkiln.cli.shared.targets import name_argument
from torchkiln.errors import ConfigError
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.runtimes.command import Bind, Command, RuntimeSettings, Streams, parse_user
from torchkiln.runtimes.runtime import DOCKER, ImageSource
from torchkiln.runtimes.table import RUNTIMES
from torchkiln.runtimes.unpacked import image_user


class _WithTail(click.Command):
    """Keeps the words after `--` apart: they are COMMAND, even if the first could be a TAG."""

    def has(self, words: object) -> bool:
        """Whether the first of *words* is an option."""
        options = {word for parameter in self.params for word in parameter.opts}
        return isinstance(words, list | tuple) and bool(words) and words[0].partition("=")[0] in options

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["torchkiln.tail"] = args[:at], tuple(args[at + 1 :])
            values, _, _ = self.make_parser(ctx).parse_args(list(args))
            ctx.allow_interspersed_args = self.has(values["command"])  # `run TAG --bind SRC:DST -- COMMAND`
        return super().parse_args(ctx, args)


@click.command(
    "run", cls=_WithTail, context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS]"
)
@selection_for_running
@layout_option()
@runtime_option()
@click.option("--user", metavar="UID[:GID]", help="run as this user  [default: the image's user]")
@click.option(
    "--bind", "binds", multiple=True, metavar="SRC:DST[:ro]", help="mount a file or folder of the host"
)
@click.option(
    "--env", "-e", "variables", multiple=True, metavar="NAME=VALUE", help="set an environment variable"
)
@click.option("--workdir", "-w", metavar="DIR", help="start in this folder  [default: the image's]")
@shm_size_option
@click.option(
    "--workspace",
    type=FOLDER,
    help="mount this folder as /workspace  [default with docker: ./workspace, if it exists]",
)
@click.option(
    "--publish", "-p", "ports", multiple=True, metavar="[[IP:]PORT:]PORT", help="docker: publish a port"
)
@gpus_option
@click.option(
    "--entrypoint/--no-entrypoint", default=True, help="run the image's entrypoint, or only COMMAND"
)
@name_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context,
    chosen: CellOptions,
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
    name: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND in an image of the layout: TAG, or the image of the selected cell.

    The words after -- are COMMAND; the default is the image's own command. Changes to files are lost at the
    end, except in mounts. Exits with the exit code of the command.

    With --runtime docker the image is first loaded into the engine, if necessary, and the equivalent
    `docker run` command is shown. TAG can be docker:NAME, an image of the engine. Without COMMAND, port 8888
    is published on 127.0.0.1, and port 22 as 2222 if SSH_PUBLIC_KEY is set.
    """
    if isinstance(ctx.command, _WithTail) and ctx.command.has(command):
        raise click.UsageError(f"{command[0]}: options must precede the TAG; put -- before a command", ctx)
    command = (*command, *ctx.meta.get("torchkiln.tail", ()))
    if chosen.any and name is not None:
        raise ConfigError(
            f"both {name!r} and the options select an image",
            hint="put -- before the command, or omit the TAG or the options",
        )
    of_engine = (name or "").startswith(DOCKER)
    named = NamedImage(layout=output, ref=chosen.tag("run") if chosen.any else name)
    if not chosen.any and not of_engine:
        named = locate(name, output, chosen)
    selected = RUNTIMES[runtime]
    if not selected.in_engine and (ports or of_engine):
        raise click.UsageError("--publish and docker:NAME require --runtime docker")
    settings = RuntimeSettings(env=tuple(_variables(variables)), gpus=gpus, shm_size=parse_size(shm_size))
    to_run = Command(
        argv=command,
        entrypoint=entrypoint,
        user=user,
        workdir=workdir,
        binds=parse_binds((*binds, *([f"{workspace}:/workspace"] if workspace else []))),
        ports=ports,
    )
    source = ImageSource(
        ref=named.ref,
        layout=named.layout,
        store=console.open_cache(),
        repository=lambda: chosen.grid()[0].repository,
    )
    selected.check(to_run, settings)
    if not selected.in_engine:
        source = replace(source, image=source.read())
        parse_user(user or image_user(source.read()))  # before the image is unpacked
    image = selected.ready(source, settings, _RunOutput())
    streams = Streams(stdin=sys.stdin.buffer, stdout=sys.stdout.buffer, stderr=sys.stderr.buffer)
    sys.exit(image.passed_through(to_run, streams))


class _RunOutput(EngineLines):
    """Prints a line when an image is unpacked."""

    def unpacks(self, image: ImageOnDisk, *, there: bool) -> None:
        if not there:
            console.echo(f"run: unpacking {image.ref}", err=True)


def parse_binds(texts: Sequence[str]) -> tuple[Bind, ...]:
    """`SRC:DST[:ro|:rw]` as binds; writable unless `ro`, like Docker's -v.

    :raises ConfigError: some have another form; all of them are listed.
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
        raise ConfigError.of(
            faults, hint="DST is an absolute path in the image, for example --bind data:/data:ro"
        )
    return tuple(found)


def _variables(texts: Sequence[str]) -> Sequence[str]:
    if faults := [f"--env {text}: not NAME=VALUE" for text in texts if "=" not in text]:
        raise ConfigError.of(faults, hint="write --env NAME=VALUE")
    return texts
