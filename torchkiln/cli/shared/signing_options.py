"""The options --key and --keyless → who vouches for what is said of an image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from torchkiln.attest.keys import private_key
from torchkiln.cli.shared import console
from torchkiln.cli.shared.reports import THERE
from torchkiln.errors import ConfigError

if TYPE_CHECKING:
    from torchkiln.attest.signers import Sealer

F = TypeVar("F", bound=Callable[..., Any])


def sealer_options(command: F) -> F:
    """The options --key and --keyless."""
    for option in (
        click.option(
            "--keyless", is_flag=True, help="sign as the CI job that this is, by Sigstore (GitHub Actions)"
        ),
        click.option("--key", "key_file", type=THERE, metavar="KEY.pem", help="sign with this key"),
    ):
        command = option(command)
    return command


def sealer_of(key_file: Path | None, keyless: bool, *, demanded: bool) -> Sealer:
    """Who seals.

    :param demanded: whether the policy wants signatures.
    :raises ConfigError: two ways at once, a key that is none, or nobody where signatures are demanded.
    """
    from torchkiln.attest.signers import ByKey, Unsigned

    if key_file and keyless:
        raise ConfigError("--key and --keyless are two ways to sign", hint="give one of them")
    if key_file:
        return ByKey(private_key(key_file))
    if keyless:
        from torchkiln.attest.keyless import Keyless

        job = Keyless.of_this_job()
        console.say(f"signing as {job.signer.identity}")
        return job
    if demanded:
        raise ConfigError(
            "the policy demands signatures, and nobody is to sign what goes with the image",
            hint="--key KEY.pem, or in GitHub Actions --keyless",
        )
    console.say(
        "unsigned: whoever can write to the registry could have said what goes with the image; --key signs it"
    )
    return Unsigned()
