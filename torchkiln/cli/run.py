"""`torchkiln run`: a command in a built image, without a container engine or in Docker's."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from torchkiln.cli.shared.console import waiting
from torchkiln.cli.shared.options import cache_root, layout_option, parse_size
from torchkiln.cli.shared.run_request import Asked
from torchkiln.cli.shared.selection import Chosen, selection
from torchkiln.errors import ConfigError

_LAST_ID = (1 << 32) - 2  # the one above means "leave it as it is" to the kernel

_USER = "it is the image's own, or that of --user; --user 1000:1000 sets another"


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
@click.option(
    "--runtime",
    type=click.Choice(["rootfs", "docker"]),
    default="rootfs",
    show_default=True,
    help="rootfs: without an engine; docker: in the Docker engine",
)
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
    if runtime != "docker" and (ports or (tag or "").startswith("docker:")):
        raise click.UsageError("--publish and docker:NAME are for --runtime docker")
    asked = Asked(
        command=command,
        entrypoint=entrypoint,
        user=user,
        workdir=workdir,
        env=tuple(_variables(variables)),
        binds=parse_binds((*binds, *([f"{workspace}:/workspace"] if workspace else []))),
        shm_size=parse_size(shm_size),
        ports=ports,
        gpus=gpus,
    )
    if runtime == "docker":
        from torchkiln.cli.shared.run_on_docker import run_on_docker

        sys.exit(run_on_docker(tag, output, chosen.matrix_file, asked))
    sys.exit(_run_in_rootfs(tag, output, asked))


def _run_in_rootfs(tag: str | None, output: Path, asked: Asked) -> int:
    """Run it in namespaces of its own; the command's own code."""
    from torchkiln.oci.layout import open_layout
    from torchkiln.oci.unpack import LayerBlob, unpacked_root
    from torchkiln.runtimes.driver import driver_for
    from torchkiln.runtimes.rootfs import RootfsRuntime
    from torchkiln.store.store import Store

    image = open_layout(output).image(tag)
    config: Mapping[str, Any] = image.config.get("config") or {}
    entrypoint = config.get("Entrypoint") or () if asked.entrypoint else ()
    argv = (*entrypoint, *(asked.command or config.get("Cmd") or ()))
    env = dict(pair.split("=", 1) for pair in (*(config.get("Env") or ()), *asked.env))
    driver = driver_for(env, asked.gpus)
    ids = _ids(asked.user or config.get("User") or "0")
    store = Store(cache_root(), on_wait=waiting)
    if not (store.root / "rootfs" / image.manifest.removeprefix("sha256:")).is_dir():
        click.echo(f"run: unpacking {image.ref} once", err=True)
    layers = [LayerBlob(path=layer.path, diff_id=layer.diff_id) for layer in image.layers]
    root = unpacked_root(image.manifest, layers, store)
    if sys.stdin.isatty():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which has the terminal
    ended = RootfsRuntime(shm_size=asked.shm_size, driver=driver).run(
        root,
        argv,
        env=env,
        binds=asked.binds,
        workdir=asked.workdir or config.get("WorkingDir") or "/",
        user=ids,
        capture=False,
    )
    return ended.code


def parse_binds(texts: Sequence[str]) -> tuple[Any, ...]:
    """`SRC:DST[:ro|:rw]` as binds; writable unless `ro`, as Docker's -v.

    :raises ConfigError: one has another form; all such are named.
    """
    from torchkiln.runtimes.rootfs import Bind

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


def _ids(text: str) -> tuple[int, int]:
    """As Docker: a uid alone runs with group 0."""
    match = re.fullmatch(r"([0-9]{1,10})(?::([0-9]{1,10}))?", text)
    if not match:
        raise ConfigError(f"user {text[:80]!r} is not UID or UID:GID in digits", hint=_USER)
    user, group = int(match[1]), int(match[2] or 0)
    if max(user, group) > _LAST_ID:
        raise ConfigError(f"user {text!r}: the kernel knows ids up to {_LAST_ID}", hint=_USER)
    return user, group


def _variables(texts: Sequence[str]) -> Sequence[str]:
    if faults := [f"--env {text}: not NAME=VALUE" for text in texts if "=" not in text]:
        raise ConfigError.of(faults)
    return texts
