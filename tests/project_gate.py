"""A project's image, its small parent image, reports of both, and mutants, for tests of the gate."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.keys import UNKNOWN_KEY
from tests.oci_samples import Member, tar_of
from tests.projects import NAME, SITE, TAG, Bench, bench
from tests.publisher import LABORATORY, Publisher, new_publisher
from tests.servers.registry_server import RegistryServer
from torchkiln.base.contents import parse_status
from torchkiln.locks.lock import save
from torchkiln.model.digest import Digest
from torchkiln.model.project import ProjectLock
from torchkiln.model.report import Finding, ProjectRun, SmokeReport
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.image import MANIFEST_TYPE, canonical_json, descriptor, digest_of
from torchkiln.oci.layout import ImageOnDisk, open_layout, write_documents
from torchkiln.projects.smoke.account import account_of
from torchkiln.projects.smoke.checks import DECLARED, project_suite
from torchkiln.smoke.attestation import attest
from torchkiln.smoke.report import to_json

PACKAGES = {
    ("torch", "2.7.1"): ("torch/__init__.py", "torch/lib/libtorch.so"),
    ("triton", "3.3.1"): ("triton/__init__.py",),
    ("nvidia-cuda-runtime-cu12", "12.6.77"): ("nvidia/cuda_runtime/lib/libcudart.so.12",),
    ("numpy", "2.3.5"): ("numpy/__init__.py",),
    ("fsspec", "2"): ("fsspec/__init__.py",),
    ("six", "1"): ("six.py",),
}
PYTHON = "#!/bin/sh\n"
DIST = "fsspec-3.dist-info"
VALUES: dict[str, dict[str, Any]] = {
    "import": {"packages": 1, "modules": 1, "failed": [], "without_modules": []},
    "pip-check": {"packages": 6, "broken": []},
    "linkage": {"libraries": 0, "missing": [], "versions": []},
    "test": {"exit_code": 0},
}
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(kw_only=True)
class Scene:
    """A project's image and its parent image; `publisher` has the keys, the suite and the reports."""

    small: Bench
    publisher: Publisher

    @property
    def image(self) -> ImageOnDisk:
        return open_layout(self.small.layout).image(NAME)

    @property
    def parent(self) -> ImageOnDisk:
        return open_layout(self.small.layout).image(TAG)

    def parent_report(self, **changes: Any) -> str:
        """Write a signed report of the parent image, on two GPUs; returns the file's path."""
        found = self.publisher.report(self.parent, **changes)
        return self.publisher.signed(found, "parent.dsse.json")

    @property
    def has_packages(self) -> bool:
        """Whether the project has OS packages."""
        return bool(account_of(self.image).packages)

    def suite_report(self, of: ImageOnDisk, **changes: Any) -> str:
        """Write a signed report of the suite in the project's image *of*; returns the file's path."""
        found = replace(self.publisher.report(self.parent), **{"image": of.manifest, **changes})
        return self.publisher.signed(found, "suite.dsse.json")

    def report(self, of: ImageOnDisk, **changes: Any) -> SmokeReport:
        """A report of the image *of*, in which all checks passed."""
        run = ProjectRun(
            parent=TAG,
            parent_image=self.parent.manifest,
            lock=Digest("sha256:" + "4" * 64),
            named=("fsspec",),
        )
        base = SmokeReport(
            image=of.manifest,
            tag=NAME,
            suite=project_suite().digest,
            runtime="rootfs",
            tool="0.1.0",
            when="2026-11-21T17:05:16Z",
            nonce=None,
            findings=tuple(finding(name) for name in ("import", "pip-check", "linkage")),
            verdict="pass",
            host="{}",
            project=replace(run, **changes.pop("run", {})),
        )
        return replace(base, **changes)

    def signed(self, report: SmokeReport, name: str = "project.dsse.json") -> str:
        """Write *report*, signed by the laboratory; returns the file's path."""
        return self.publisher.signed(report, name)

    def gate(self, ref: str, *options: str) -> tuple[int, str, str]:
        """Run `torchkiln gate`; returns exit code, stdout, and stderr with the error."""
        return self.run("gate", ref, *options)

    def run(self, command: str, *options: str) -> tuple[int, str, str]:
        """Run *command* in the folders of the scene; returns exit code, stdout, and stderr with the error."""
        done = self.publisher.run(command, *options, *self.publisher.here)
        error = done.exception
        if error is None or isinstance(error, SystemExit):
            return done.exit_code, done.stdout, done.stderr
        assert hasattr(error, "exit_code"), error
        return error.exit_code, done.stdout, f"{done.stderr}{error.message}\n{error.hint}"

    def judged(self, of: ImageOnDisk, **changes: Any) -> tuple[int, str, str]:
        """Run `gate` for *of*; by signed reports, all checks passed in this image and its parent image."""
        files = [self.parent_report(), self.signed(self.report(of, **changes))]
        if self.has_packages:
            files.append(self.suite_report(of))
        return self.gated(files, ref=of.ref)

    def gated(self, files: Iterable[str], *options: str, ref: str = NAME) -> tuple[int, str, str]:
        """Run `gate` with the reports *files*, by the laboratory's key."""
        reports = [word for file in files for word in ("--report", file)]
        return self.gate(ref, *reports, "--trust", str(self.publisher.folder / "lab.pub.pem"), *options)

    @property
    def keys(self) -> tuple[str, ...]:
        """The options of `publish` that name its target's date, its key and the trusted one."""
        folder = self.publisher.folder
        trust = ("--trust", f"laboratory={folder / 'lab.pub.pem'}")
        return ("--dated", "20261122", "--key", str(folder / "publisher.pem"), *trust)

    def published(
        self, server: RegistryServer, *more: str, ref: str = NAME, files: tuple[str, ...] = ()
    ) -> tuple[int, str, str]:
        """Run `publish` for *ref* with the reports *files*, by default signed ones of both images."""
        if not files:
            suite = [self.suite_report(self.image)] if self.has_packages else []
            files = (self.parent_report(), self.signed(self.report(self.image)), *suite)
        reports = [word for file in files for word in ("--report", file)]
        return self.run("publish", ref, "--to", f"{server.host}/team/app", *self.keys, *reports, *more)

    def verified(self, server: RegistryServer, tag: str = NAME, *more: str) -> tuple[int, str]:
        """The exit code and output of `verify`."""
        suite = ("--suite", str(self.publisher.suite))
        done = self.publisher.run(
            "verify", f"{server.host}/team/app:{tag}", *self.publisher.keys, *suite, *more
        )
        code = getattr(done.exception, "exit_code", done.exit_code)
        return code, f"{done.stdout}{done.stderr}{getattr(done.exception, 'message', '')}"

    def mutant(
        self,
        *layers: bytes | None,
        config: Callable[[dict[str, Any]], None] = lambda _: None,
        order: Callable[[list[Any]], list[Any]] = lambda found: found,
    ) -> ImageOnDisk:
        """Write the image `mutant`: the project's image with the tars *layers* on top, with matching digests.

        :param config: changes the configuration in place.
        :param order: returns the new list of layers.
        """
        image, layout = self.image, open_layout(self.small.layout)
        rows = [(layer.digest, layer.size, layer.diff_id) for layer in image.layers]
        for tar in filter(None, layers):
            rows.append(self.stored(tar))
        rows = order(rows)
        document = json.loads(image.config_path.read_bytes())
        document["rootfs"]["diff_ids"] = [diff_id for _, _, diff_id in rows]
        document.pop("history", None)
        config(document)
        data = canonical_json(document)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": descriptor(CONFIG, digest_of(data), len(data)),
            "layers": [descriptor(LAYER, digest, size) for digest, size, _ in rows],
        }
        write_documents(layout.path, "mutant", canonical_json(manifest), data)
        return open_layout(layout.path).image("mutant")

    def layer(self, *members: Member) -> Any:
        """Write a layer of *members*; returns its digest, size and diff_id."""
        return self.stored(tar_of(members))

    def stored(self, tar: bytes) -> tuple[Digest, int, Digest]:
        """Write the layer *tar* to the layout; returns its digest, size and diff_id."""
        blob, encoded = encode_bytes(tar)
        open_layout(self.small.layout).blob(encoded.digest).write_bytes(blob)
        return encoded.digest, encoded.size, encoded.diff_id


def finding(name: str, outcome: Any = "passed", **measured: Any) -> Finding:
    """The finding of the check *name*; *measured* replaces values that are within their bounds."""
    values = {**VALUES[name], **measured}
    bounds = {value: rule for value, rule in DECLARED[name].items() if "type" not in rule}
    return Finding(
        id=name,
        tier=0,
        outcome=outcome,
        seconds=1.0,
        message="" if outcome == "passed" else "it failed",
        measured=json.dumps(values),
        threshold=json.dumps(bounds),
    )


def scene(
    folder: Path,
    wheels: Callable[[Bench], Iterable[Path]] = lambda _: (),
    settings: str = "",
    change: Callable[[Bench, ProjectLock], ProjectLock] = lambda _, lock: lock,
    base: Mapping[str, bytes] | None = None,
) -> Scene:
    """A built project that replaces the parent image's fsspec, and adds *wheels*.

    :param settings: the text of torchkiln.toml.
    :param change: returns the lock to build, from the original one.
    :param base: more files of the base, by path.
    """
    small = bench(folder, PYTHON, PACKAGES, {"torch": "torchrun"}, base)
    installed = parse_status((base or {}).get("var/lib/dpkg/status", b"").decode())
    small.cell = replace(small.cell, base=replace(small.cell.base, packages=installed))
    if settings:
        (small.project / "torchkiln.toml").write_text(settings)
    fsspec = small.wheel("fsspec", "3", "fsspec/__init__.py", "fsspec/new.py")
    small.build(change(small, small.lock(fsspec, *wheels(small), requirements=["fsspec>=3"])))
    save(small.folder / "images", small.cell)
    return Scene(small=small, publisher=new_publisher(folder))


def by_another_key(report: SmokeReport) -> bytes:
    """*report*, signed by an untrusted key."""
    return attest(report, UNKNOWN_KEY)


def plain(report: SmokeReport) -> bytes:
    """*report*, unsigned."""
    return to_json(report)


__all__ = ["DIST", "LABORATORY", "SITE", "Scene", "by_another_key", "finding", "plain", "scene"]
