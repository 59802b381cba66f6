"""Witness, Policy, LockedCell -> ClearedImage: an image that may be published, or everything that is missing.

A report is taken as what somebody states: the gate looks whether the policy's checks passed on exactly this
image, by exactly this suite, and whether the raw values bear out what is stated. What does not apply is
computed again from the lock. What was skipped, was the host's fault or is absent was not passed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, Literal, NamedTuple

from torchkiln import hosts
from torchkiln.claims import facts_of
from torchkiln.errors import GateRefused
from torchkiln.lock import lock_digest
from torchkiln.matrix import Policy
from torchkiln.nouns import Digest, Finding, LockedCell, Witness
from torchkiln.plan import IMAGE_JSON, plan
from torchkiln.suite import Suite, SuiteCheck
from torchkiln.tags import tag_of
from torchkiln.verdict import faults, host_fault, verdict

_GPUS = {0: 0, 1: 1, 2: 2, 3: 1}  # that a check of a tier needs at least
_CLEARANCE = object()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClearedImage:
    """An image that was proved as its policy demands. Only `clear` makes one: having one is the permission.

    It stands here and not among the nouns, for what makes it is this module's own.
    """

    tag: str
    image: Digest
    suite: Digest
    passed: tuple[str, ...]  # ids of checks
    left_out: tuple[tuple[str, str], ...]  # (check, the fact for which it does not apply)
    signers: tuple[str, ...]  # fingerprints of trusted keys that signed every report; empty: none did
    by: InitVar[object]

    def __post_init__(self, by: object) -> None:
        if by is not _CLEARANCE:
            raise TypeError("only the gate clears an image")


def clear(
    witnesses: Sequence[Witness],
    policy: Policy,
    locked: LockedCell,
    suite: Suite,
    *,
    image: Digest,
    nonce: str | None = None,
) -> ClearedImage:
    """Let the image *image* of *locked* through.

    Several reports complete each other (one GPU here, two there), and each must be sound: what failed in one
    is not mended by another in which it passed.

    :param nonce: the word that every report must bear; None: none was given.
    :raises GateRefused: something is missing; all of it.
    """
    tag = tag_of(locked.resolution)
    facts = facts_of(locked, {}, tag=tag, lock_digest=lock_digest(locked), manifest=image)
    required = [check for check in suite.checks if check.tier in policy.tiers or check.id in policy.checks]
    standing = {check.id: _standing(check, witnesses, suite, facts) for check in required}
    missing = [("policy", text) for text in _of_policy(policy, suite, required)]
    for witness in witnesses:
        told = [*_of_image(witness, locked, image), *_of_request(witness, policy, suite, nonce)]
        missing += [(witness.name, text) for text in told]
    missing += [(name, text) for name, judged in standing.items() for text in _lacks(judged)]
    if missing:
        count = "1 thing is" if len(missing) == 1 else f"{len(missing)} things are"
        raise GateRefused(
            f"{tag} ({image[:19]}) is not cleared: {count} missing",
            missing=missing,
            hint=f"run what is missing where it can run: torchkiln smoke {tag} --tier 2 --report FILE",
        )
    proved = {name for name, judged in standing.items() if any(one.worth == "passed" for one in judged)}
    return ClearedImage(
        tag=tag,
        image=image,
        suite=suite.digest,
        passed=tuple(name for name in standing if name in proved),
        left_out=tuple((name, judged[0].text) for name, judged in standing.items() if name not in proved),
        signers=tuple(sorted(set.intersection(*(set(witness.signers) for witness in witnesses)))),
        by=_CLEARANCE,
    )


def _of_policy(policy: Policy, suite: Suite, required: Sequence[SuiteCheck]) -> Iterator[str]:
    """Why nothing could satisfy *policy*."""
    known = {check.id for check in suite.checks}
    for name in policy.checks:
        if name not in known:
            yield f"it demands the check {name}, which the suite does not have"
    if not required:
        yield "it demands no check that the suite has, so it would prove nothing"


def _of_image(witness: Witness, locked: LockedCell, image: Digest) -> Iterator[str]:
    """Why a report does not tell of *image*."""
    report, tag = witness.report, tag_of(locked.resolution)
    if report.image is None:
        yield "tells of an environment, not of an image"
        return
    if report.image != image:
        yield f"tells of another image: {report.image}, not {image}"
    if report.tag != tag:
        yield f"calls the image {report.tag}"
    if json.loads(report.host).get("image_json_sha256") != _image_json(locked):
        yield "the image.json that was read inside is not the one that the lock gives"


def _of_request(witness: Witness, policy: Policy, suite: Suite, nonce: str | None) -> Iterator[str]:
    """Why a report is not what was asked for, whatever its image."""
    report = witness.report
    if report.suite != suite.digest:
        yield f"was made by another suite: {report.suite[:19]}, not {suite.digest[:19]}"
    if (again := verdict(report.findings)) != report.verdict:
        yield f"states {report.verdict!r}, and its own values give {again!r}"
    if nonce is not None and report.nonce != nonce:
        bears = f"the nonce {report.nonce}" if report.nonce else "no nonce"
        yield f"answers another request: it bears {bears}"
    if policy.signed and not witness.signers:
        yield "is signed by no trusted key" if witness.signed else "is not signed"


def _image_json(locked: LockedCell) -> str:
    """Hex sha256 of the account that the image gives of itself."""
    files = plan(locked, (), aliases=(), lock_digest=lock_digest(locked)).layers[-1].files
    return next(hashlib.sha256(file.data).hexdigest() for file in files if file.path == IMAGE_JSON)


class _Word(NamedTuple):
    """What one report's finding on one check is worth."""

    worth: Literal["passed", "left out", "open", "wrong"]
    text: str  # the fact for which it is left out; else why it is no proof, and who says so


def _standing(
    check: SuiteCheck, witnesses: Sequence[Witness], suite: Suite, facts: Mapping[str, Any]
) -> list[_Word]:
    return [
        _judged(check, finding, witness, suite, facts)
        for witness in witnesses
        for finding in witness.report.findings
        if finding.id == check.id
    ]


def _lacks(judged: Sequence[_Word]) -> list[str]:
    """Why a check is not proved; empty if it is. What is wrong in one report no other can make good."""
    if wrong := [word.text for word in judged if word.worth == "wrong"]:
        return wrong
    if any(word.worth != "open" for word in judged):
        return []
    return [word.text for word in judged] or ["no report tells of it: it did not run"]


def _judged(
    check: SuiteCheck, finding: Finding, witness: Witness, suite: Suite, facts: Mapping[str, Any]
) -> _Word:
    if finding.outcome == "skipped":
        return _Word("open", f"skipped: {_first(finding.message)} ({witness.name})")
    if fault := host_fault(finding):
        return _Word("open", f"inconclusive: {fault} ({witness.name})")
    if wrong := list(_wrongs(check, finding, json.loads(witness.report.host), suite, facts)):
        return _Word("wrong", f"{'; '.join(wrong)} ({witness.name})")
    if finding.outcome == "passed":
        return _Word("passed", "")
    return _Word("left out", finding.message)


def _wrongs(
    check: SuiteCheck, finding: Finding, host: Mapping[str, Any], suite: Suite, facts: Mapping[str, Any]
) -> Iterator[str]:
    """Why *finding* speaks against the image, or against itself."""
    fact = suite.not_applicable(check.id, facts, hosts.capability(host))
    here, needed = len(hosts.gpus(host)), _GPUS[check.tier]
    if finding.tier != check.tier:
        yield f"told as a check of tier {finding.tier}, and is of tier {check.tier}"
    if finding.outcome == "passed":
        yield from faults(finding)
        if fact:
            yield f"passed, although {fact!r} says that it cannot apply"
        if here < needed:
            yield f"passed where {here} GPUs were, and needs {needed}"
    elif finding.outcome == "not-applicable":
        if fact != finding.message:
            yield f"left out for {finding.message!r}, but {f'the fact is {fact!r}' if fact else 'it applies'}"
    elif finding.outcome == "failed":
        yield f"failed: {_first(finding.message)}"
    else:
        yield f"its outcome is {finding.outcome!r}, which is none"


def _first(text: str) -> str:
    return (text.splitlines() or ["no reason is told"])[0][:300]
