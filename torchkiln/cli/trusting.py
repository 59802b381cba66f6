"""The options --key, --identity and --issuer → whose signatures count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from torchkiln.cli import console
from torchkiln.cli.reports import THERE, public_keys

if TYPE_CHECKING:
    from torchkiln.policy import Policy
    from torchkiln.publishing.trust import Trust
    from torchkiln.statements.signature import PublicKey

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
    from torchkiln.publishing.sealing import Signer
    from torchkiln.publishing.trust import Trust

    signer = Signer(identity=identity, issuer=issuer) if identity else None
    return Trust(keys=(*policy_keys(policy, matrix_file), *public_keys(keys)), signer=signer)


def policy_keys(policy: Policy, matrix_file: Path) -> list[PublicKey]:
    """The keys that the policy names; one whose time is over is left out, with a line that says so."""
    today, good = f"{datetime.now(timezone.utc):%Y-%m-%d}", []
    for one in policy.keys:
        if one.until and one.until < today:
            console.say(f"{one.file}: this key was trusted until {one.until}: its signatures do not count")
        else:
            good.append(matrix_file.parent / one.file)
    return public_keys(good)
