"""Defines the result of a smoke run: findings, the report, and the report with its signatures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from torchkiln.model import fields
from torchkiln.util import codec

Tag = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$", description="a tag")]
RuntimeName = Annotated[
    str,
    Meta(pattern=r"^[a-z][a-z0-9-]{0,40}$", description='the name of a runtime, "rootfs", or "environment"'),
]
ToolVersion = Annotated[
    str, Meta(pattern=r"^[0-9][0-9A-Za-z.+-]{0,40}$", description="a version of torchkiln")
]
Time = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$",
        description='a time in UTC, "2026-11-21T17:05:16Z"',
    ),
]
Nonce = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9._~:-]{8,128}$", description="8 to 128 of the characters A-Z a-z 0-9 . _ ~ : -"
    ),
]
CheckId = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,80}$", description="the id of a check")]
#: The schemas of `measured` and `threshold` in a document, where they are objects, not JSON texts.
MEASURED: dict[str, Any] = {"type": "object", "description": "raw values by name"}
THRESHOLD: dict[str, Any] = {
    "type": "object",
    "description": "by the same names",
    "additionalProperties": {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": False,
        "properties": {"equals": True, "at_least": {"type": "number"}, "at_most": {"type": "number"}},
    },
}
_Names = Annotated[tuple[fields.Name, ...], Meta(max_length=5000)]
Outcome = Literal["passed", "failed", "skipped", "not-applicable"]
Verdict = Literal["pass", "fail", "inconclusive"]
Root = Literal["mounted", "unpacked"]  # EROFS images of the layers, or a copy
Role = Literal["publisher", "laboratory"]
#: The roles of a key, by the word for them before the file's name: "laboratory=lab.pub.pem".
ROLES: Mapping[str, tuple[Role, ...]] = {
    "publisher": ("publisher",),
    "laboratory": ("laboratory",),
    "any": ("publisher", "laboratory"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One check's outcome; `measured` and `threshold` are JSON texts."""

    id: CheckId
    tier: Annotated[int, Meta(ge=0, le=3)]
    outcome: Outcome
    seconds: Annotated[float, Meta(ge=0)]
    message: str  # why it failed or was skipped; the id of the fact because of which it does not apply
    measured: str = field(metadata={codec.SCHEMA: MEASURED})
    threshold: str = field(metadata={codec.SCHEMA: THRESHOLD})


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectRun:
    """What a smoke run in the image of a project tested, in addition to the fields of `SmokeReport`."""

    parent: Tag
    parent_image: fields.Sha256Digest  # the digest of the parent image's manifest
    lock: fields.Sha256Digest  # the seal of torchkiln.lock.json
    named: _Names = ()  # the packages that the project itself requires
    test: Annotated[tuple[fields.Line, ...], Meta(max_length=200)] = ()  # the command of its own test
    may_lack: Annotated[tuple[fields.Line, ...], Meta(max_length=5000)] = ()  # the values of --allow-missing
    at_start: Annotated[tuple[fields.Line, ...], Meta(max_length=5000)] = ()  # .pth files of its packages
    gpus: fields.Line = "none"  # the value of --gpus


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeReport:
    """The results of the checks in the image with the manifest digest `image`, or in an environment."""

    image: fields.Sha256Digest | None  # None, like `tag`: an environment; the gate clears only images
    tag: Tag | None
    suite: fields.Sha256Digest  # of the files of smoke_tests/, or of the checks of a project
    runtime: RuntimeName
    tool: ToolVersion
    when: Time | None  # start of the run in UTC, "2026-11-21T17:05:16Z"; None: not recorded
    nonce: Nonce | None  # returned unchanged, so that a requester can recognize the report of its run
    findings: Annotated[tuple[Finding, ...], Meta(max_length=1000)]
    verdict: Verdict
    host: str = field(metadata={codec.SCHEMA: {"$ref": "#/$defs/host"}})  # JSON text
    # when torchkiln compared the unpacked files with the image's layers; None: torchkiln did not unpack the
    # image (the run used an engine or an environment), or the report is older than this field
    verified: Time | None = None
    # None: the suite was run in a cell's image; else the checks of a project, and `suite` is their digest
    project: ProjectRun | None = None
    root: Root | None = None  # how torchkiln provided the files; None, where `verified` is None, or older


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedReport:
    """A report and the trusted keys whose signatures on it are valid."""

    name: str  # of its file, for messages
    report: SmokeReport
    signed: bool  # it has a signature, valid or not
    signers: tuple[str, ...]  # fingerprints of the trusted keys with a valid signature
    own: bool = False  # this machine ran it, and it comes from the cache
    envelope: bytes | None = field(default=None, repr=False)  # the signed statement, unchanged
