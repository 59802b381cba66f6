"""The gate: clears an image for publication, or lists everything that is missing.

It checks that the policy's checks passed on exactly this image, with exactly this suite, and that the
measured values support the stated outcomes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, replace
from datetime import datetime, timedelta

from torchkiln.errors import ConfigError, GateRefused
from torchkiln.gate.check_status import GPUS, CheckStatus, check_status
from torchkiln.gate.gpu_stack import BINDING, EarlierImage
from torchkiln.gate.hints import GivenOptions, Needed, commands
from torchkiln.locks.file import lock_digest
from torchkiln.matrix.gpu_archs import is_kept_for
from torchkiln.matrix.policy import Policy
from torchkiln.matrix.tags import tag_of
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import SignedReport, SmokeReport
from torchkiln.model.untrusted import USES, is_untrusted
from torchkiln.plan.plan import IMAGE_JSON, plan
from torchkiln.smoke import hosts
from torchkiln.smoke.expected import facts_of
from torchkiln.smoke.reuse import age_of, start_of
from torchkiln.smoke.suite import Suite
from torchkiln.smoke.verdict import verdict

_CLEARANCE = object()
_GPU = "GPU "  # in `missing`, "GPU 9.0" stands for the capability 9.0
_CLOCKS = timedelta(minutes=5)  # accepted difference between two clocks, as in Kerberos


@dataclass(frozen=True, kw_only=True, slots=True)
class GateResult:
    """The gate's result: the status of every check of the suite, and the requirements that are not met."""

    tag: str
    image: Digest
    suite: Digest
    policy: Policy  # for this cell
    statuses: tuple[CheckStatus, ...]
    missing: tuple[tuple[str, str], ...]  # (check, report or other subject; reason)
    signed_reports: tuple[SignedReport, ...]
    earlier: tuple[EarlierImage, ...] = ()  # images with the same GPU stack, with the reports that count
    project: ProjectProof | None = None  # for the image of a project; None: the image of a cell

    @property
    def passed(self) -> tuple[str, ...]:
        """Ids of the required checks that passed."""
        return tuple(
            status.check for status in self.statuses if status.required and status.outcome == "passed"
        )

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        """The required checks that do not apply, each with the reason."""
        return tuple(
            (status.check, status.fact)
            for status in self.statuses
            if status.required and status.outcome == "not-applicable"
        )

    @property
    def counted(self) -> tuple[SignedReport, ...]:
        """The reports of the image, and those of earlier images that count for it."""
        own = (signed for signed in self.signed_reports if signed.report.image == self.image)
        return (*own, *(signed for image in self.earlier for signed in image.reports))

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs of `counted`, "2 × NVIDIA H200" each, with the image if it is an earlier one."""
        return tuple(dict.fromkeys(filter(None, (self.gpus_of(signed.report) for signed in self.counted))))

    def gpus_of(self, report: SmokeReport) -> str:
        """The GPUs of *report*; empty: none."""
        found = hosts.kinds(json.loads(report.host))
        if not found or report.image == self.image:
            return found
        which = "same GPU stack" if report.image in {one.image for one in self.earlier} else "another image"
        return f"{found} in {(report.image or '').removeprefix('sha256:')[:12]} ({which})"

    @property
    def signers(self) -> tuple[str, ...]:
        """Fingerprints of the trusted keys that signed every report."""
        carried = (signed for image in self.earlier for signed in image.reports)
        signed = [set(signed_report.signers) for signed_report in (*self.signed_reports, *carried)]
        return tuple(sorted(set.intersection(*signed))) if signed else ()

    @property
    def needed(self) -> Needed:
        """What must run: the required checks that are not proved, or all if only reports are refused."""
        required = tuple(status for status in self.statuses if status.required)
        gpus = tuple(what.removeprefix(_GPU) for what, _ in self.missing if what.startswith(_GPU))
        names = {name for capability in gpus for name in _unproved(required, capability)}
        names |= {status.check for status in required if status.lacks}
        return Needed(
            tag=self.tag,
            checks=tuple(status for status in required if not names or status.check in names),
            suite=self.statuses,
            gpus=gpus,
            signed=self.policy.signed,
            reports=self.signed_reports,
            of_project=self.project is not None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectProof:
    """What the proof of the parent image covers in a project's image, and what nothing proves (ADR 58)."""

    below: GateResult  # of the parent image, by its own reports
    in_image: GateResult | None  # of the suite in a project's image; None: no OS packages, so not required
    layers: int  # number of the parent image's layers, which are the lowest of the project's image
    added: tuple[str, ...]  # packages of the project, "datasets 4.8.5"
    os_packages: tuple[str, ...]  # of the distribution, by project.json, "libxcb1 1.15-1"
    replaced: tuple[str, ...]  # names of packages of the parent image that have other files
    at_start: tuple[str, ...]  # .pth files, which Python runs at each start
    variables: tuple[str, ...]  # names of environment variables that the parent image does not have
    may_lack: tuple[str, ...]  # libraries and packages that `--allow-missing` named
    test: tuple[str, ...]  # the command of the project's own test
    hint: str  # what to do if the layers or the configuration are refused; empty: they are not


@dataclass(frozen=True, kw_only=True, slots=True)
class ClearedImage:
    """An image that may be published. Only this module can create one."""

    result: GateResult
    override: str | None  # the reason of --override; None: nothing is missing
    by: InitVar[object]

    def __post_init__(self, by: object) -> None:
        if by is not _CLEARANCE:
            raise TypeError("only the gate clears an image")


def clear(result: GateResult, given: GivenOptions | None = None) -> ClearedImage:
    """Clear an image that meets all requirements.

    :param given: options of the command, for the hints.
    :raises GateRefused: something is missing; the message lists all of it, the hint the commands.
    """
    if result.missing:
        count = len(result.missing)
        raise GateRefused(
            f"{result.tag} ({result.image[:19]}) is not cleared: "
            f"{count} {'requirement is' if count == 1 else 'requirements are'} not met",
            missing=result.missing,
            hint="\n".join(dict.fromkeys(_hints(result, given or GivenOptions()))),
        )
    return ClearedImage(result=result, override=None, by=_CLEARANCE)


def _hints(result: GateResult, given: GivenOptions) -> Iterator[str]:
    """What the user can do about missing requirements, of this image and of its parent image."""
    if (project := result.project) is None:
        yield from commands(result.needed, given)
        return
    if project.hint:
        yield f"{project.hint}; or push it without the gate: torchkiln push"
        return
    if any(status.lacks for status in result.statuses) or result.signed_reports:
        yield from commands(result.needed, given)
    for other in (project.in_image, project.below):
        if other is not None and other.missing:
            yield from commands(other.needed, given)


def override(result: GateResult, reason: str) -> ClearedImage:
    """Clear an image although requirements are not met; the clearance records them, and *reason*.

    :raises ConfigError: the reason is empty.
    """
    if not reason.strip():
        raise ConfigError(
            "--override requires a reason", hint='for example: --override "tested manually on node 7"'
        )
    return ClearedImage(result=result, override=reason.strip(), by=_CLEARANCE)


def judge(
    signed_reports: Sequence[SignedReport],
    policy: Policy,
    locked: LockedCell,
    suite: Suite,
    *,
    image: Digest,
    earlier: Sequence[EarlierImage] = (),
    nonce: str | None = None,
    at: datetime | None = None,
) -> GateResult:
    """Check *signed_reports* against *policy*.

    Reports of several hosts complement each other. All must be valid: a pass in one report does not cancel a
    failure in another.

    :param earlier: images with the same GPU stack; their GPU runs count if the policy allows it.
    :param nonce: every report must have it; None: any nonce, or none.
    :param at: the current time; None: reports may have any age.
    """
    tag, policy = tag_of(locked.resolution), policy.of(locked.resolution)
    digest = lock_digest(locked)
    image_json = _image_json(locked, digest)
    facts = facts_of(locked, {}, tag=tag, lock_digest=digest, manifest=image)
    carried = tuple(_carried(earlier, policy, suite, nonce, at))
    counted = [signed_report for other in carried for signed_report in other.reports]
    signed_reports = [signed_report for signed_report in signed_reports if signed_report not in counted]
    evidence = [(signed_report, facts) for signed_report in signed_reports]
    on_gpus = [*evidence, *(pair for other in carried for pair in other.evidence)]
    statuses = tuple(
        check_status(
            check,
            on_gpus if GPUS[check.tier] else evidence,
            suite,
            required=check.tier in policy.tiers or check.id in policy.checks,
        )
        for check in suite.checks
    )
    missing = [("policy", text) for text in _of_policy(policy, suite)]
    if is_untrusted(locked):
        missing.append(("lock", f"{USES}: lock it again with sources that you trust"))
    for signed_report in signed_reports:
        faults = [
            *_of_image(signed_report, tag, image, image_json),
            *request_faults(signed_report, policy, suite, nonce, at),
        ]
        missing += [(signed_report.name, text) for text in faults]
    required = [status for status in statuses if status.required]
    missing += [(status.check, text) for status in required for text in status.lacks]
    kept = locked.resolution.cell.gpus
    missing += _of_gpus([gpu for gpu in policy.gpus if is_kept_for(gpu, kept)], required)
    return GateResult(
        tag=tag,
        image=image,
        suite=suite.digest,
        policy=policy,
        statuses=statuses,
        missing=tuple(missing),
        signed_reports=tuple(signed_reports),
        earlier=carried,
    )


def _carried(
    earlier: Iterable[EarlierImage],
    policy: Policy,
    suite: Suite,
    nonce: str | None,
    at: datetime | None,
) -> Iterator[EarlierImage]:
    """The images of *earlier*, without reports that the policy does not accept.

    The rest must contain the checks that bind an image to its lock.
    """
    ages = [days for days in (policy.report_age, policy.carry) if days]
    policy = replace(policy, report_age=min(ages, default=0))
    for other in earlier if policy.carry else ():
        if is_untrusted(other.locked):
            continue
        tag = tag_of(other.locked.resolution)
        kept = replace(
            other,
            reports=tuple(
                signed_report
                for signed_report in other.reports
                if signed_report.report.tag == tag
                and not list(hosts.contradictions(json.loads(signed_report.report.host)))
                and not list(request_faults(signed_report, policy, suite, nonce, at))
            ),
        )
        binding = [
            check_status(check, kept.evidence, suite, required=True).outcome
            for check in suite.checks
            if check.id in BINDING
        ]
        if binding == ["passed"] * len(BINDING):
            yield kept


def _of_policy(policy: Policy, suite: Suite) -> Iterator[str]:
    known = {check.id for check in suite.checks}
    for name in policy.checks:
        if name not in known:
            yield f"it requires the check {name}, which the suite does not have"
    if not any(check.tier in policy.tiers or check.id in policy.checks for check in suite.checks):
        yield "it requires no check of the suite"


def _of_image(signed_report: SignedReport, tag: str, image: Digest, image_json: str) -> Iterator[str]:
    """Why a report is not of *image*.

    :param image_json: SHA-256, hex, of the image's image.json.
    """
    report = signed_report.report
    if report.image is None:
        yield "is a report of an environment, not of an image"
        return
    if report.image != image:
        yield f"is a report of another image: {report.image}, not {image}"
    if report.tag != tag:
        yield f"has the tag {report.tag}"
    host = json.loads(report.host)
    yield from (f"contradicts itself: the host {text}" for text in hosts.contradictions(host))
    if host.get("image_json_sha256") != image_json:
        yield "the image.json in the image differs from that of the lock"


def request_faults(
    signed_report: SignedReport, policy: Policy, suite: Suite, nonce: str | None, at: datetime | None
) -> Iterator[str]:
    """Why a report does not meet *policy*, whatever image it is about."""
    report = signed_report.report
    if report.suite not in (suite.digest, *policy.suites):
        yield f"was made by another suite: {report.suite[:19]}, not {suite.digest[:19]}"
    if (again := verdict(report.findings)) != report.verdict:
        yield f"states {report.verdict!r}, but its values give {again!r}"
    if nonce is not None and report.nonce != nonce:
        found = f"has the nonce {report.nonce}" if report.nonce else "has no nonce"
        yield f"nonce mismatch: it {found}"
    start = start_of(report)
    if at and start and start > at + _CLOCKS:
        yield f"ran at {report.when}, which is in the future"
    elif at and policy.report_age and age_of(report, at) > timedelta(days=policy.report_age):
        ran = f"ran at {report.when}" if report.when else "has no time of its run"
        yield f"{ran}: the policy requires runs of the last {policy.report_age} days"
    if not signed_report.signers and (policy.signed or not (signed_report.own or policy.accept_unsigned)):
        reason = "is not signed by a trusted key" if signed_report.signed else "is not signed"
        yield reason if policy.signed else f"{reason}, and is not of a run in this machine's cache"


def _of_gpus(gpus: Iterable[str], required: Sequence[CheckStatus]) -> Iterator[tuple[str, str]]:
    """A line for each of *gpus* on which no run passed a check that passed on other GPUs."""
    for capability in gpus:
        if lacking := _unproved(required, capability):
            yield f"{_GPU}{capability}", f"no run on these GPUs passed {', '.join(lacking)}"


def _unproved(required: Iterable[CheckStatus], capability: str) -> list[str]:
    """The checks that are proved, but not on GPUs of *capability*."""
    return [
        status.check
        for status in required
        if GPUS[status.tier] and not status.lacks and capability not in status.capabilities
    ]


def _image_json(locked: LockedCell, digest: Digest) -> str:
    """SHA-256, hex, of the image's image.json; *digest* is the lock's."""
    files = plan(locked, (), aliases=(), lock_digest=digest).overlay.files
    return next(hashlib.sha256(file.data).hexdigest() for file in files if file.path == IMAGE_JSON)
