"""All readers of untrusted documents, each with a sound document and the error that it raises for others."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from packaging.specifiers import SpecifierSet

from tests import sboms
from tests.arranged_documents import TAG
from tests.document_strategies import json_bytes
from tests.keys import P256
from tests.oci_samples import digest
from tests.planned import FACTS
from tests.reports import IMAGE, LOCKED, SUITE, WHEN, report, signed_report
from tests.unit.document_shapes import shaped, shapes
from tests.unit.test_project_file import LOCK as PROJECT_LOCK
from torchkiln.attest.dsse import BUNDLE_TYPE, certificate, decode, sign
from torchkiln.attest.keys import KeyInRole
from torchkiln.attest.provenance import origin, provenance
from torchkiln.attest.signers import Trust, bundled
from torchkiln.attest.statement import (
    PAYLOAD_TYPE,
    Statement,
    parse,
    payload,
    publication,
    published_names,
    reason_of,
    retraction,
)
from torchkiln.base import archive, artefact, effects
from torchkiln.base.contents import parse_status
from torchkiln.engine import keep
from torchkiln.errors import (
    BadWheel,
    BuildFailed,
    ConfigError,
    KilnError,
    RegistryError,
    Stale,
    VerificationFailed,
)
from torchkiln.gate.clearance import clearance, decision_of
from torchkiln.gate.gate import clear, judge
from torchkiln.index import pages
from torchkiln.index.choose import newest_of
from torchkiln.index.listing import Page, listing
from torchkiln.index.read_page import wheels_on
from torchkiln.locks import file as lock_file
from torchkiln.matrix import cuda_redist, matrix, mirrors
from torchkiln.matrix.policy import Policy
from torchkiln.model.index import METADATA_LIMIT, read_metadata
from torchkiln.model.lock import LockedBase, LockedTools
from torchkiln.oci.documents import descriptors, diff_ids, read_document
from torchkiln.projects import file as project_lock
from torchkiln.projects import pylock, settings
from torchkiln.projects.choice import NO_CHOICE
from torchkiln.projects.effect import files_of_records
from torchkiln.projects.files import LIMIT
from torchkiln.projects.read import read_project
from torchkiln.projects.sources.sdist import build_system
from torchkiln.publishing import session as publishing
from torchkiln.registry import tokens
from torchkiln.registry.credentials import find_login
from torchkiln.registry.messages import HttpResponse
from torchkiln.registry.reading import Document, RepositoryReader
from torchkiln.registry.reference import Repository
from torchkiln.sbom import evidence
from torchkiln.sbom.cyclonedx import cyclonedx, sbom_statement
from torchkiln.sbom.matches import listed
from torchkiln.site import folder as catalogue
from torchkiln.smoke import report as smoke_report
from torchkiln.smoke.attestation import report_of, statement_of
from torchkiln.smoke.bundle import held
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT
from torchkiln.wheel import install, splice

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DocumentReader:
    """A reader of documents of one kind.

    :ivar sound: a document that it reads.
    :ivar refusal: what it raises for any other; all are errors with a message for users, but `ValueError`.
    :ivar strict: whether it refuses an unknown key at the top.
    :ivar most: the bytes that its caller reads at most.
    """

    sound: bytes
    read: Callable[[bytes], object]
    refusal: type[Exception] = VerificationFailed
    strict: bool = False
    form: str = "json"
    most: int = 4 << 20


def _of(
    sound: bytes, read: Callable[[bytes], object], refusal: type[Exception] = VerificationFailed, **more: Any
) -> DocumentReader:
    return DocumentReader(sound=sound, read=read, refusal=refusal, **more)


def _from_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """*read* of a file with the given bytes."""

    def read_bytes(data: bytes) -> object:
        with TemporaryDirectory() as folder:
            (Path(folder) / name).write_bytes(data)
            return read(Path(folder) / name)

    return read_bytes


def _statement(
    made: Statement, read: Callable[..., object], refusal: type[Exception] = VerificationFailed
) -> DocumentReader:
    return _of(payload(made), lambda data: read(parse(data, where="x"), where="x"), refusal)


def _layout(document: Any, use: Callable[[Path, Any], object]) -> DocumentReader:
    """A document of an OCI layout; *use* reads its parts."""

    def read(path: Path) -> object:
        return use(path, read_document(path))

    return _of(json_bytes(document), _from_file(read, "blob"))


def _manifest(data: bytes) -> object:
    return Document(digest=IMAGE, media_type="x", data=data).json


def _response(body: bytes, status: int) -> HttpResponse:
    return HttpResponse(url="https://registry.example/", status=status, headers={}, body=body)


def _some(value: T) -> T:
    """:raises ValueError: *value* is empty, so the document was ignored."""
    if not value:
        raise ValueError("no value")
    return value


class _Listed(RepositoryReader):
    """A repository whose lists have one page, *page*; it has no registry."""

    def __init__(self, page: bytes) -> None:
        self.repository, self._base, self._page = Repository(host="registry.example", name="a"), "", page

    def _pages(self, *_: object) -> Iterator[bytes]:
        yield self._page


_ENTRY = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(b"a"), "size": 7}
_CONFIG = {
    "architecture": "amd64",
    "os": "linux",
    "config": {"Env": ["A=b"], "Cmd": ["x"], "Labels": {"a": "b"}, "User": "0"},
    "rootfs": {"type": "layers", "diff_ids": [digest(b"a")]},
    "history": [{"created_by": "x"}],
}
_ENVELOPE = sign(PAYLOAD_TYPE, payload(statement_of(report())), P256)
_TRUSTED = KeyInRole(key=P256.public_key(), roles=("publisher",))
_BUNDLE = bundled(_ENVELOPE, None, "urn:x").data
_REDIST = (
    'schema: 1\nsource: "a file for tests"\nuntrusted: true\nreleases:\n  "12.1.1":\n'
    f'    cuda_nvcc: {{version: "12.1.105", size: 7, sha256: "{"a" * 64}"}}\n'
)
_EFFECT = effects.Effects(
    form="layer",
    blob=IMAGE,
    epoch=7,
    dpkg_options=(),
    merged=("bin=usr/bin",),
    removed=("b",),
    changed=(effects.Effect(path="a", text="x"),),
)
_LOGINS = {"auths": {"registry.example": {"username": "kim", "password": "x"}}}
_NAME, _SCHEME = install.parse_name("a-1-py3-none-any.whl"), install.Scheme(prefix="/opt/venv", python="3.11")
_INSTALLED = "opt/venv/lib/python3.11/site-packages/a-1.dist-info/METADATA"
_WHEEL = "a-1-py3-none-any.whl"
_HTML = f'<html><a href="{_WHEEL}#sha256={"0" * 64}">{_WHEEL}</a></html>'
_PAGE = json_bytes(
    {
        "meta": {"api-version": "1.0"},
        "files": [{"filename": _WHEEL, "url": _WHEEL, "hashes": {"sha256": "0" * 64}}],
    }
)
_PYLOCK = f"""lock-version = "1.0"
created-by = "x"
[[packages]]
name = "a"
version = "1"
wheels = [{{name = "{_WHEEL}", url = "https://x/{_WHEEL}", hashes = {{sha256 = "{"0" * 64}"}}}}]
"""
_COPYRIGHT = "Format: copyright-format/1.0/\n\nFiles: *\nCopyright: x\nLicense: MIT\n x\n"
_UV_LOCK = b"""version = 1
requires-python = ">=3.10"
[[package]]
name = "a"
version = "0"
source = { virtual = "." }
"""


def _project(name: str) -> Callable[[bytes], object]:
    """The reader of a project whose only file is *name*."""
    return _from_file(lambda path: read_project(path.parent, {}, Store(Path("/nowhere"))), name)


_TOML: Any = {"form": "toml", "most": LIMIT}


def _lines(
    sound: str, read: Callable[[bytes], object], refusal: type[Exception], most: int
) -> DocumentReader:
    return _of(sound.encode(), read, refusal, form="lines", most=most)


def _yaml(sound: bytes, read: Callable[[bytes], object]) -> DocumentReader:
    return _of(sound, read, ConfigError, strict=True, form="yaml", most=512 << 10)


def _page(body: bytes, *, json: bool) -> Page:
    return Page(url="https://x/", json=json, body=body)


# fmt: off
# ruff: noqa: E501
READERS: Mapping[str, DocumentReader] = {
    "lock": _of((ROOT / "images" / TAG / "lock.json").read_bytes(), lock_file.from_json, Stale, strict=True),
    "base": _of(artefact.to_json(LOCKED.base), lambda data: artefact.from_json(data, LockedBase), ConfigError, strict=True),
    "tools": _of((ROOT / "images/base-debian12/devel.json").read_bytes(), lambda data: artefact.from_json(data, LockedTools), ConfigError, strict=True),
    "files of a base": _of(archive.to_json(sboms.files(sboms.locked())), archive.from_json, ConfigError, strict=True),
    "effects": _of(json_bytes(effects.document(_EFFECT)), lambda data: effects.from_bytes(effects.encode_bytes(data)[0], "x"), ValueError, strict=True),
    "report": _of(smoke_report.to_json(report()), smoke_report.from_json, ConfigError, strict=True),
    "SBOM": _of(cyclonedx(sboms.bill()), listed),
    "provenance": _statement(provenance(LOCKED, IMAGE, source=None, builder="urn:x"), origin),
    "decision": _statement(clearance(clear(judge([signed_report(report())], Policy(), LOCKED, SUITE, image=IMAGE))), decision_of),
    "retraction": _statement(retraction(TAG, IMAGE, reason="x", when=WHEN), reason_of),
    "names": _statement(publication(TAG, IMAGE, ["v1"]), published_names),
    "signed report": _statement(statement_of(report()), report_of, KilnError),
    "signed SBOM": _statement(sbom_statement(sboms.bill()), lambda one, where: listed(one.predicate.encode(), where=where)),
    "envelope": _of(_ENVELOPE, lambda data: decode(data, where="x")),
    "bundle": _of(_BUNDLE, lambda data: Trust(keys=(_TRUSTED,)).open(data, BUNDLE_TYPE, where="x")),
    "certificate in a bundle": _of(json_bytes({**json.loads(_BUNDLE), "verificationMaterial": {"certificate": {"rawBytes": "AAAA"}}}), lambda data: certificate(data, where="x")),
    "unsigned statement": _of(payload(statement_of(report())), lambda data: Trust().open(data, PAYLOAD_TYPE, where="x")),
    "index of a layout": _layout({"schemaVersion": 2, "manifests": [_ENTRY]}, lambda path, it: descriptors(path, "manifests", it)),
    "manifest": _layout({"schemaVersion": 2, "config": _ENTRY, "layers": [_ENTRY], "subject": _ENTRY}, lambda path, it: descriptors(path, "layers", it)),
    "config": _layout(_CONFIG, diff_ids),
    "manifest of a registry": _of(json_bytes({"schemaVersion": 2}), _manifest),
    "tags in a registry": _of(json_bytes({"name": "a", "tags": ["v1"]}), lambda data: _Listed(data).tags(), RegistryError),
    "referrers in a registry": _of(json_bytes({"manifests": [_ENTRY]}), lambda data: _Listed(data).referrers(IMAGE), RegistryError),
    "logins": _of(json_bytes(_LOGINS), _from_file(lambda path: find_login(Repository(host="registry.example", name="a"), {"DOCKER_CONFIG": str(path.parent)}), "config.json"), ConfigError),
    "project's lock": _of(project_lock.to_json(PROJECT_LOCK), project_lock.from_json, Stale, strict=True, most=LIMIT),
    "page of an index in JSON": _of(_PAGE, lambda data: wheels_on(_page(data, json=True), "a"), BuildFailed, form="page", most=pages.MOST),
    "newest on a page": _of(_PAGE, lambda data: newest_of(listing(_page(data, json=True)), SpecifierSet(), "3.11", ()), BuildFailed, form="page", most=pages.MOST),
    "page of an index": _lines(_HTML, lambda data: wheels_on(_page(data, json=False), "a"), BuildFailed, pages.MOST),
    "token of a registry": _of(b'{"token": "x"}', lambda data: _some(tokens._token(_response(data, 200))[0]), ValueError),
    "error of a registry": _of(b'{"errors": [{"code": "DENIED"}]}', lambda data: _some(_response(data, 403).error_text().partition(",")[2]), ValueError),
    "list of a catalogue": _of(json_bytes({"kind": "torchkiln catalogue", "files": {"a": "b"}}), lambda data: _some(_from_file(catalogue._listed, "x")(data)), ValueError),
    "lock in a vault": _of(json_bytes({"schemaVersion": 2, "config": _ENTRY, "layers": [_ENTRY]}), lambda data: list(keep._entries(data, "x"))),
    "image.json in an image": _of(b'{"wheels": []}', lambda data: evidence._contents({"x": data.decode()}, "x"), ValueError),
    "own_use in an image": _of(b'{"own_use": true}', lambda data: publishing._own_use(data.decode(errors="surrogateescape"), "x"), KilnError),
    "layers that a host has": _lines(f"{IMAGE} x\n", held.parse_held, ValueError, held.LIMIT),
    "index of packages": _lines("Package: tar\nVersion: 1\n", _from_file(lambda path: archive.read_lists(path.parent, ()), "x_Packages"), BuildFailed, 4 << 20),
    "copyright": _lines(_COPYRIGHT, lambda data: evidence._debian_licences(data.decode()), ValueError, 1 << 20),
    "pyproject.toml": _of(b'[project]\nname = "a"\ndependencies = ["b"]\n', _project("pyproject.toml"), ConfigError, **_TOML),
    "torchkiln.toml": _of(b'command = ["a"]\n', lambda data: settings.settings_from({settings.FILE: data}.get), ConfigError, **_TOML),
    "pylock.toml": _of(_PYLOCK.encode(), lambda data: pylock.packages_of(data, (), {}), ConfigError, **_TOML),
    "uv.lock": _of(_UV_LOCK, _from_file(lambda path: pylock.packages_of_uv(path.read_bytes(), "a", (), NO_CHOICE, Store(path.parent)), "x"), KilnError, **_TOML),
    "pyproject.toml of an sdist": _of(b"[build-system]\nrequires = []\n", build_system, ValueError, **_TOML),
    "requirements.txt": _lines("a\n", _project("requirements.txt"), ConfigError, LIMIT),
    "METADATA": _lines("Name: a\nVersion: 1\n", read_metadata, ValueError, METADATA_LIMIT),
    "METADATA in an image": _lines("Name: a\nVersion: 1\n", lambda data: list(evidence._distributions({_INSTALLED: data.decode()})), ValueError, 1 << 20),
    "METADATA in a wheel": _lines("Name: a\nVersion: 1\n", lambda data: splice.check(b"Wheel-Version: 1.0\n", data, _NAME, _SCHEME), BadWheel, 4 << 20),
    "WHEEL": _lines("Wheel-Version: 1.0\nTag: py3-none-any\n", lambda data: splice.check(data, b"Name: a\nVersion: 1\n", _NAME, _SCHEME), BadWheel, 1 << 20),
    "RECORD": _lines("a/__init__.py,,\n", lambda data: install.parse_record(data, _NAME), BadWheel, 16 << 20),
    "RECORD in an image": _lines("a/__init__.py,,\n", lambda data: files_of_records({_INSTALLED.replace("METADATA", "RECORD"): data.decode()}, _SCHEME), VerificationFailed, 16 << 20),
    "entry_points.txt": _lines("[console_scripts]\na = a:b\n", lambda data: install.launchers(data, _NAME, _SCHEME), BadWheel, 1 << 20),
    "dpkg's status in an image": _lines("Package: tar\nStatus: install ok installed\n", lambda data: list(evidence._installed(data.decode())), ValueError, 4 << 20),
    "dpkg's status": _lines("Package: tar\nStatus: install ok installed\nVersion: 1\n", lambda data: parse_status(data.decode()), BuildFailed, 4 << 20),
    "matrix": _yaml((ROOT / "matrix.yaml").read_bytes(), _from_file(lambda path: matrix.read(path, FACTS), "matrix.yaml")),
    "facts of NVIDIA's archives": _yaml(_REDIST.encode(), lambda data: cuda_redist.parse(data, name="x")),
    "mirrors": _yaml((ROOT / "torchkiln/data/mirrors.yaml").read_bytes(), lambda data: mirrors.parse(data, name="x")),
}
# fmt: on


def value_of(reader: DocumentReader) -> Any:
    """The value in the sound document of a reader of JSON."""
    return json.loads(reader.sound)


def measured() -> None:
    """Give the readers in sys.argv[2:] documents of all shapes, of sys.argv[1] bytes or the most that they read.

    Writes the CPU seconds of each, and the peak memory of this process in MiB at its end.
    """
    for name in sys.argv[2:]:
        reader = READERS[name]
        for shape in shapes(reader.form):
            data = shaped(reader.form, reader.sound, shape, min(int(sys.argv[1]), reader.most))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            with suppress(reader.refusal):
                reader.read(data)
            used = resource.getrusage(resource.RUSAGE_SELF)
            row = (name, shape, round(used.ru_utime - before, 1), used.ru_maxrss >> 10)
            sys.stdout.write(json.dumps(row) + "\n")
