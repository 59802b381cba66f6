"""The options --policy, --key, --identity and --issuer → by whose rules, and whose signatures count.

Trust is what the command line names. A matrix.yaml that merely lies in the current folder says which cells
there are, and decides neither what is demanded nor who is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from torchkiln.attest.keys import NamedKey, policy_keys, public_keys
from torchkiln.cli.shared import console
from torchkiln.cli.shared.reports import named_keys
from torchkiln.util.places import ROOT

if TYPE_CHECKING:
    from torchkiln.attest.roles import KeyInRole
    from torchkiln.attest.trust import Trust
    from torchkiln.matrix.matrix import Matrix
    from torchkiln.matrix.policy import Policy

_GITHUB = "https://token.actions.githubusercontent.com"
_OWN = ROOT / "matrix.yaml"  # of this installation: its policy holds where none is named
F = TypeVar("F", bound=Callable[..., Any])


def trust_options(*names: str) -> Callable[[F], F]:
    """The options --trust, under more *names* where nothing is signed, --identity and --issuer."""

    def with_options(command: F) -> F:
        for option in (
            click.option("--issuer", default=_GITHUB, show_default=True, help="of that identity"),
            click.option(
                "--identity",
                metavar="[ROLE=]WHO",
                help="whose signature without a key counts: the CI job's address",
            ),
            click.option(
                *names,
                "--trust",
                "keys",
                callback=named_keys,
                multiple=True,
                metavar="[ROLE=]PUBLIC.pem",
                help="whose signatures count; several. ROLE: publisher, laboratory; without it both",
            ),
        ):
            command = option(command)
        return command

    return with_options


def policy_option(command: F) -> F:
    """The option --policy."""
    return click.option(
        "--policy",
        "policy_file",
        type=click.Path(path_type=Path, dir_okay=False),
        show_default="of the installed matrix.yaml, without its keys",
        help="a matrix.yaml whose policy and keys count",
    )(command)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """By which policy, and whose signatures count by it."""

    policy: Policy
    keys: tuple[KeyInRole, ...]
    matrix: Matrix  # in which the policy stands
    file: Path


def rules_of(policy_file: Path | None, matrix_file: Path, grid: Matrix) -> Rules:
    """Those in *policy_file*, else in *matrix_file* if the command line named it, else the installation's.

    :param grid: what was read from *matrix_file*: no file is read twice.
    :raises ConfigError: a file is missing or wrong.
    """
    from torchkiln.matrix import facts, matrix

    chosen = policy_file or (matrix_file if _is_named("matrix_file") else None)
    if chosen is not None:
        found = grid if chosen == matrix_file else matrix.read(chosen, facts.load())
        return Rules(policy=found.policy, keys=_keys(found.policy, chosen), matrix=found, file=chosen)
    ours = grid if _is_same(matrix_file, _OWN) else matrix.read(_OWN, facts.load())
    _say_what_is_not_used(matrix_file, grid.policy, ours.policy)
    return Rules(policy=replace(ours.policy, keys=()), keys=(), matrix=ours, file=_OWN)


def trust_of(rules: Rules, keys: Sequence[NamedKey], identity: str | None, issuer: str) -> Trust:
    """Those whom the rules name, and those who were named on the command line."""
    from torchkiln.attest.roles import role_named
    from torchkiln.attest.signers import Signer
    from torchkiln.attest.trust import Trust

    signer = None
    if identity:
        roles, who = role_named(identity)
        signer = Signer(identity=who, issuer=issuer, roles=roles)
    return Trust(keys=(*rules.keys, *public_keys(keys)), signer=signer)


def _keys(policy: Policy, file: Path) -> tuple[KeyInRole, ...]:
    """The keys that *policy* names; one that has expired is left out, with a line that says so."""
    keys, expired = policy_keys(policy, file.parent, today=f"{datetime.now(timezone.utc):%Y-%m-%d}")
    for one in expired:
        console.say(f"{one.file}: this key was trusted until {one.until}: its signatures do not count")
    return keys


def _say_what_is_not_used(file: Path, there: Policy, used: Policy) -> None:
    """One line, where something stands in *file* that would have made a difference."""
    parts = ["its policy"] if replace(there, keys=()) != replace(used, keys=()) else []
    parts += ["its keys"] if there.keys else []
    if parts:
        console.say(f"{file}: {' and '.join(parts)} not used: name the file to use it: --policy {file}")


def _is_named(parameter: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
