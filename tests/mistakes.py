"""Mistakes of users on the command line: reads `mistakes.yaml`, and makes each one in an empty folder.

`python -m tests.mistakes` updates the messages in mistakes.yaml: review the diff before you commit it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from tests.arranged_documents import locked
from tests.hostile_documents import Case, Ran, provoke
from tests.keys import ED, UNKNOWN_KEY, pem, public_pem
from tests.oci_samples import BlobFolder, Member, build, plan, tar_of
from tests.python_builds import archive_in
from torchkiln.model.project import PARENT_LABEL, PROJECT_JSON
from torchkiln.oci.layout import write_image
from torchkiln.plan.plan import IMAGE_JSON
from torchkiln.util.places import ROOT

FILE = Path(__file__).with_name("mistakes.yaml")
TITLE = (
    "# Mistakes on the command line, with torchkiln's messages: read and rewritten by tests/mistakes.py.\n"
)
PROOF = ROOT / "docs/proofs/2.7.1-cuda12.1-debian12-tier0.json"
MATRIX = """torch: ["2.6.0", "2.7.1"]
cuda: ["11.8", "12.1"]
flavors: [runtime]
os: {debian12: {python: "3.11"}}
packages: [numpy]
repository: pytorch-cuda
"""
# Variables that name an index, engine, registry or key of this machine.
CLEARED = re.compile("TORCHKILN_|PIP_|UV_|DOCKER_|SSH_|NVIDIA_|XDG_|.*_proxy$", re.IGNORECASE)

PLACEHOLDERS = (
    (r"\b[0-9a-f]{64}\b", "{sha256}"),
    (r"/…/[\w.-]+", "/…/{project}"),  # the first error of several requests is reported
)


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A command line in a folder with `scenes`, `files`, `edits` and the environment `env`."""

    run: str
    code: int
    says: str
    name: str = ""
    scenes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    edits: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def arrange(self) -> None:
        """Put the files into the current folder."""
        for scene in self.scenes:
            SCENES[scene]()
        for name, text in self.files.items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir() if name.endswith("/") else path.write_text(text)
        for name, (old, new) in self.edits.items():
            text = Path(name).read_text()
            assert old in text
            Path(name).write_text(text.replace(old, new, 1))


@cache
def read() -> tuple[Mistake, ...]:
    """The mistakes in mistakes.yaml."""
    rows = yaml.load(FILE.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return tuple(
        Mistake(**{key: tuple(value) if key == "scenes" else value for key, value in row.items()})
        for row in rows
    )


def make(mistake: Mistake, folder: Path) -> Ran:
    """Run the command of *mistake* in the empty *folder*; placeholders replace paths and hashes in stderr."""
    environ = {name: value for name, value in os.environ.items() if not CLEARED.match(name)}
    environ |= {
        "HOME": str(folder),
        "DOCKER_HOST": "tcp://127.0.0.1:1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:1/simple",
        "COLUMNS": "200",
        **mistake.env,
    }
    case = Case(
        name=mistake.run,
        arrange=mistake.arrange,
        argv=tuple(shlex.split(mistake.run)),
        code=mistake.code,
        message=mistake.says,
    )
    with (
        patch.dict(os.environ, environ, clear=True),
        patch("torchkiln.util.http.retry.pause", lambda *_: 0.0),
    ):
        ran = provoke(case, folder)
    text = ran.err.replace(str(folder), "{tmp}").replace(str(ROOT), "{torchkiln}")
    for pattern, placeholder in PLACEHOLDERS:
        text = re.sub(pattern, placeholder, text)
    return Ran(code=ran.code, out=ran.out, err=text)


def _layout() -> None:
    """A layout of one image, "a", in ./dist."""
    build(Path.cwd())
    Path("layout").rename("dist")


def _keys() -> None:
    Path("key.pem").write_bytes(pem(ED))
    Path("key.pem").chmod(0o600)
    Path("public.pem").write_bytes(public_pem(ED))
    Path("other.pem").write_bytes(public_pem(UNKNOWN_KEY))


def _own_use() -> None:
    """A layout of one image, "a", which image.json marks as for own use (NVIDIA's libraries are cut)."""
    folders = [Member(name="etc/"), Member(name="etc/torchkiln/")]
    build(Path.cwd(), tar_of([*folders, Member(name=IMAGE_JSON, data=b'{"own_use": true}')]))
    Path("layout").rename("dist")


def _project(parent: str = "3") -> None:
    """A layout of one image, "a", that is the image of a project; its parent image is missing.

    :param parent: the digit that is repeated in the digest of the parent image in project.json.
    """
    tag = "2.7.1-cuda12.1-cudnn9-runtime"
    below = {"tag": tag, "manifest": f"sha256:{parent * 64}", "lock": f"sha256:{'4' * 64}"}
    lists: dict[str, list[str]] = {"requirements": [], "wheels": [], "removed": [], "at_start": []}
    facts = json.dumps({"schema": 1, "name": "a", "parent": below, **lists}).encode()
    folders = [Member(name="etc/"), Member(name="etc/torchkiln/")]
    store = BlobFolder(Path.cwd() / "store")
    layer = store.layer("code", tar_of([*folders, Member(name=PROJECT_JSON, data=facts)]))
    labels = ((PARENT_LABEL, f"{tag}@sha256:{'3' * 64}"),)
    write_image(Path.cwd() / "dist", plan("a", labels=labels), [layer], store.path)


def _python_build() -> None:
    """A matrix with Python 3.12 from an archive, which exists, and the lock of its base."""
    bases = Path("images/base-debian12")
    bases.mkdir(parents=True)
    shutil.copy(ROOT / bases / "base.json", bases)
    _, archive = archive_in(Path.cwd(), name="python.tar.gz")
    entry = {"python": "3.12", "os": "debian12", "archive": "python.tar.gz", "sha256": archive.sha256}
    Path("matrix.yaml").write_text(f"{MATRIX}pythons: {json.dumps([entry])}\n")


SCENES: Mapping[str, Callable[[], Any]] = {
    "lock": locked,
    "layout": _layout,
    "own-use": _own_use,
    "project-image": _project,
    "forged-project": lambda: _project("5"),
    "keys": _keys,
    "python-build": _python_build,
    "matrix": lambda: Path("matrix.yaml").write_text(MATRIX),
    "report": lambda: shutil.copy(PROOF, "report.json"),
}


def write() -> None:
    """Make each mistake, and write its exit code and message into the file."""
    rows = yaml.safe_load(FILE.read_text())
    for row, mistake in zip(rows, read(), strict=True):
        with tempfile.TemporaryDirectory() as folder:
            ran = make(mistake, Path(folder))
        row["code"], row["says"] = ran.code, ran.err + (f"STDOUT {ran.out}" if ran.out else "")
    blocks = (
        yaml.dump([row], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000) for row in rows
    )
    FILE.write_text(TITLE + "\n" + "\n".join(blocks))


class _Dumper(yaml.SafeDumper):
    """Writes multi-line text as YAML blocks."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


if __name__ == "__main__":
    write()
