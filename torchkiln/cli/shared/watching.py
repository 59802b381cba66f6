"""Defines --watch and its options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from torchkiln.cli.shared.options import options


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchOptions:
    """The values of the options: where each image is pushed to, if anywhere."""

    target: str | None  # REGISTRY/REPOSITORY
    tags: tuple[str, ...]
    plain_http: bool
    licence_confirmed: bool


_OPTIONS = options(
    click.option(
        "--watch",
        "watches",
        is_flag=True,
        help="with --project: build again whenever the code changes, until Ctrl-C",
    ),
    click.option(
        "--to",
        "target",
        metavar="REGISTRY/REPOSITORY",
        help="with --watch: push each image there, as `torchkiln push` does",
    ),
    click.option(
        "--tag",
        "tags",
        multiple=True,
        metavar="NAME",
        help="with --to: push under this tag; repeatable  [default: unproven-NAME]",
    ),
    click.option(
        "--licence-confirmed",
        is_flag=True,
        help="with --to: you have the right to distribute NVIDIA's changed libraries (--own-use)",
    ),
)


def watch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; *command* receives them together, as `watch`, which is None without --watch."""

    @functools.wraps(command)
    def with_watch(
        *arguments: Any,
        watches: bool,
        target: str | None,
        tags: tuple[str, ...],
        plain_http: bool,
        licence_confirmed: bool,
        **values: Any,
    ) -> Any:
        if watches and values.get("project") is None:
            raise click.UsageError("--watch needs --project")
        if target and not watches:
            raise click.UsageError("--to needs --watch; to push an image once: torchkiln push TAG --to …")
        for option, given in (("--tag", tags), ("--licence-confirmed", licence_confirmed)):
            if given and not target:
                raise click.UsageError(f"{option} needs --watch and --to")
        watch = WatchOptions(
            target=target, tags=tags, plain_http=plain_http, licence_confirmed=licence_confirmed
        )
        return command(
            *arguments, watch=watch if watches else None, plain_http=plain_http and not target, **values
        )

    decorated: Callable[..., Any] = _OPTIONS(with_watch)
    return decorated
