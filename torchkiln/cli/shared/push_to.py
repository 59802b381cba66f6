"""Defines --to of `project push` and `project watch`, and the options that go with it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import click

from torchkiln.cli.shared.options import Decorator, options, plain_http_option


@dataclass(frozen=True, kw_only=True, slots=True)
class PushTo:
    """Where the image of a project is pushed to."""

    target: str  # REGISTRY/REPOSITORY
    tags: tuple[str, ...]
    plain_http: bool
    licence_confirmed: bool


def push_to_options(*, required: bool = False) -> Decorator:
    """The options; the command receives them together as `to`, None without --to."""
    decorators = options(
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
        click.option(
            "--licence-confirmed",
            is_flag=True,
            help="for images built with --own-use: confirm that you have the right to distribute them",
        ),
    )

    def decorate(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def with_push(*arguments: Any, **values: Any) -> Any:
            given = {field.name: values.pop(field.name) for field in fields(PushTo)}
            if not given["target"] and any(given.values()):
                raise click.UsageError("--tag, --plain-http and --licence-confirmed require --to")
            return command(*arguments, to=PushTo(**given) if given["target"] else None, **values)

        return decorators(with_push)

    return decorate
