"""Defines --to of `build --project`, the options that go with it, and --watch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from torchkiln.cli.shared.options import options


@dataclass(frozen=True, kw_only=True, slots=True)
class PushTo:
    """Where the image of a project is pushed to."""

    target: str  # REGISTRY/REPOSITORY
    tags: tuple[str, ...]
    plain_http: bool
    licence_confirmed: bool


_OPTIONS = options(
    click.option(
        "--watch",
        is_flag=True,
        help="with --project: build again whenever the code changes, until Ctrl-C",
    ),
    click.option(
        "--to",
        "target",
        metavar="REGISTRY/REPOSITORY",
        help="with --project: also push the image there, as `torchkiln push` does",
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
        help="with --to, for images built with --own-use: confirm that you have the right to distribute them",
    ),
)


def push_to_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; *command* receives `watch`, and the others together as `to`, None without --to."""

    @functools.wraps(command)
    def with_push(
        *arguments: Any,
        target: str | None,
        tags: tuple[str, ...],
        plain_http: bool,
        licence_confirmed: bool,
        **values: Any,
    ) -> Any:
        if values["watch"] and values["project"] is None:
            raise click.UsageError("--watch requires --project")
        if target and values["project"] is None:
            raise click.UsageError("--to requires --project; for another image: torchkiln push TAG --to …")
        for option, given in (("--tag", tags), ("--licence-confirmed", licence_confirmed)):
            if given and not target:
                raise click.UsageError(f"{option} requires --to")
        to = None
        if target:
            to = PushTo(target=target, tags=tags, plain_http=plain_http, licence_confirmed=licence_confirmed)
        return command(*arguments, to=to, plain_http=plain_http and not target, **values)

    decorated: Callable[..., Any] = _OPTIONS(with_push)
    return decorated
