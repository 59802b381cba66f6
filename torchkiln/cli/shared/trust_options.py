"""Defines the options --policy, --key, --keyless, --identity and --issuer, and reads what they name.

A matrix.yaml that is only found in the current folder lists cells; its policy and keys are not used unless
an option names the file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from torchkiln.attest.keys import NamedKey, policy_keys, private_key, public_keys
from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import EXISTING_FILE, Decorator, gathered
from torchkiln.cli.shared.reports import in_roles, named_keys
from torchkiln.errors import ConfigError
from torchkiln.util.places import MATRIX

if TYPE_CHECKING:
    from torchkiln.attest.keys import KeyInRole
    from torchkiln.attest.signers import Signer, Trust
    from torchkiln.matrix.matrix import Matrix
    from torchkiln.matrix.policy import Policy
    from torchkiln.model.report import Role

_GITHUB = "https://token.actions.githubusercontent.com"


policy_option = click.option(
    "--policy",
    "policy_file",
    type=EXISTING_FILE,
    show_default="the installed matrix.yaml, without its keys",
    help="use the policy and the keys of this matrix.yaml",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trusting:
    """The values of --trust, --identity, --issuer and --policy."""

    keys: tuple[NamedKey, ...]
    identity: tuple[tuple[Role, ...], str] | None
    issuer: str
    policy_file: Path | None

    def trust(self, active: ActivePolicy) -> Trust:
        """The keys of the active policy, and the keys and the identity of the command line."""
        from torchkiln.attest.keys import SignerIdentity
        from torchkiln.attest.signers import Trust

        signer = None
        if self.identity:
            roles, address = self.identity
            signer = SignerIdentity(identity=address, issuer=self.issuer, roles=roles)
        return Trust(keys=(*active.keys, *public_keys(self.keys)), signer=signer)


def trust_options(*names: str, only: Role | None) -> Decorator:
    """The options of a `Trusting`; --trust is also called *names*. *only*: the role of a key without one."""
    role = "[ROLE=]" if only else "ROLE="
    return gathered(
        "trusting",
        Trusting,
        click.option(
            *names,
            "--trust",
            "keys",
            callback=named_keys(only),
            multiple=True,
            metavar=f"{role}PUBLIC.pem",
            help="trust signatures by this key; repeatable. ROLE: publisher, laboratory (reports), or any",
        ),
        click.option(
            "--identity",
            callback=lambda _context, _parameter, value: None if value is None else in_roles(value, only),
            metavar=f"{role}ADDRESS",
            help="trust keyless signatures by this identity: the address of a CI workflow",
        ),
        click.option(
            "--issuer",
            metavar="URL",
            default=_GITHUB,
            show_default=True,
            help="the OIDC issuer of the identity",
        ),
        policy_option,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivePolicy:
    """The policy that a command applies, and its keys."""

    policy: Policy
    keys: tuple[KeyInRole, ...]
    matrix: Matrix  # contains the policy
    file: Path


def active_policy(policy_file: Path | None, matrix_file: Path, grid: Matrix) -> ActivePolicy:
    """The policy in *policy_file*, else in *matrix_file* if it was named, else the installed one.

    :param grid: the content of *matrix_file*, so that the file is not read again.
    :raises ConfigError: a file is missing or wrong.
    """
    from torchkiln.matrix import facts, matrix

    context = click.get_current_context()
    named = context.get_parameter_source("matrix_file") is ParameterSource.COMMANDLINE
    chosen = policy_file or (matrix_file if named else None)
    if chosen is not None:
        found = grid if chosen == matrix_file else matrix.read(chosen, facts.load(chosen))
        keys = policy_keys(found.policy, chosen, console.say)
        return ActivePolicy(policy=found.policy, keys=keys, matrix=found, file=chosen)
    own = grid if _is_same(matrix_file, MATRIX) else matrix.read(MATRIX, facts.load(MATRIX))
    _note_ignored(matrix_file, grid.policy, own.policy)
    return ActivePolicy(policy=replace(own.policy, keys=()), keys=(), matrix=own, file=MATRIX)


def _note_ignored(file: Path, there: Policy, used: Policy) -> None:
    """Print a line if the policy or the keys of *file* differ from those that are used.

    A suite that only the policy in use names is not a difference: it may be an earlier torchkiln's suite.
    """
    same = replace(there, keys=(), suites=()) == replace(used, keys=(), suites=())
    parts = [] if same and {*there.suites} <= {*used.suites} else ["its policy"]
    parts += ["its keys"] if there.keys else []
    if parts:
        console.say(f"{file}: {' and '.join(parts)} not used; to use this file, add --policy {file}")


def _is_same(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Signing:
    """The values of --key and --keyless."""

    key_file: Path | None
    keyless: bool


signing_options = gathered(
    "signing",
    Signing,
    click.option(
        "--key", "key_file", type=EXISTING_FILE, metavar="KEY.pem", help="sign with this private key"
    ),
    click.option("--keyless", is_flag=True, help="sign as this GitHub Actions job, through Sigstore"),
)


def signer_of(signing: Signing, *, demanded: bool) -> Signer:
    """The signer that the options name.

    :param demanded: whether the policy requires signatures.
    :raises ConfigError: both options are given, the key is not valid, or a required signature has no signer.
    """
    from torchkiln.attest.signers import ByKey, Unsigned

    if signing.key_file and signing.keyless:
        raise ConfigError("--key cannot be used with --keyless", hint="use one of them")
    if signing.key_file:
        return ByKey(private_key(signing.key_file))
    if signing.keyless:
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
