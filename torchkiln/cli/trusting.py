"""The options --key, --identity and --issuer → whose signatures count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from torchkiln.cli.reports import THERE, public_keys

if TYPE_CHECKING:
    from torchkiln.policy import Policy
    from torchkiln.trust import Trust

_GITHUB = "https://token.actions.githubusercontent.com"
F = TypeVar("F", bound=Callable[..., Any])


def trust_options(*names: str) -> Callable[[F], F]:
    """The options --trust, under more *names* where nothing is signed, --identity and --issuer."""

    def with_options(command: F) -> F:
        for option in (
            click.option("--issuer", default=_GITHUB, show_default=True, help="of that identity"),
            click.option(
                "--identity", metavar="WHO", help="whose signature without a key counts: the CI job's address"
            ),
            click.option(
                *names,
                "--trust",
                "keys",
                type=THERE,
                multiple=True,
                metavar="PUBLIC.pem",
                help="whose signatures count; several",
            ),
        ):
            command = option(command)
        return command

    return with_options


def trust_of(
    policy: Policy, matrix_file: Path, keys: Sequence[Path], identity: str | None, issuer: str
) -> Trust:
    """Those whom the policy names, and those who were named on the command line."""
    from torchkiln.sealing import Signer
    from torchkiln.trust import Trust

    own = [matrix_file.parent / name for name in policy.keys]
    signer = Signer(identity=identity, issuer=issuer) if identity else None
    return Trust(keys=tuple(public_keys([*own, *keys])), signer=signer)
