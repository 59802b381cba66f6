"""Defines the options --key and --keyless, and makes the signer that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchkiln.attest.keys import private_key
from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import EXISTING_FILE, options
from torchkiln.errors import ConfigError

if TYPE_CHECKING:
    from torchkiln.attest.signers import Signer

signing_options = options(
    click.option(
        "--key", "key_file", type=EXISTING_FILE, metavar="KEY.pem", help="sign with this private key"
    ),
    click.option("--keyless", is_flag=True, help="sign as this GitHub Actions job, through Sigstore"),
)


def signer_of(key_file: Path | None, keyless: bool, *, demanded: bool) -> Signer:
    """The signer that the options name.

    :param demanded: whether the policy requires signatures.
    :raises ConfigError: both options are given, the key is not valid, or a required signature has no signer.
    """
    from torchkiln.attest.signers import ByKey, Unsigned

    if key_file and keyless:
        raise ConfigError("--key cannot be used with --keyless", hint="use one of them")
    if key_file:
        return ByKey(private_key(key_file))
    if keyless:
        from torchkiln.attest.keyless import Keyless

        job = Keyless.of_this_job()
        console.say(f"signing as {job.signer.identity}")
        return job
    if demanded:
        raise ConfigError(
            "the policy requires signatures, but no signing key is given",
            hint="add --key KEY.pem, or in GitHub Actions --keyless",
        )
    console.say(
        "warning: not signed: anyone who can write to the registry can replace the SBOM, the provenance and "
        "the reports; --key KEY.pem signs them"
    )
    return Unsigned()
