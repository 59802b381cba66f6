"""The real image with an edited file. RECORD and byte-code were edited, too, so that they match this file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import io
import json
import marshal
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.needs import nightly
from tests.programs import run_program
from tests.proof.headline import SITE, TAG
from torchkiln.util.places import ROOT

pytestmark = [pytest.mark.proof, nightly, pytest.mark.usefixtures("free_rootfs")]

MODULE = f"{SITE}/tqdm/utils.py"
BYTE_CODE = f"{SITE}/tqdm/__pycache__/utils.cpython-311.pyc"


class EditedLayout:
    """A copy of an OCI layout, written only with tarfile and json."""

    def __init__(self, source: Path, folder: Path) -> None:
        shutil.copytree(source, folder, copy_function=lambda old, new: Path(new).hardlink_to(old))
        self.index = folder / "index.json"
        self.blobs = folder / "blobs/sha256"
        self.pointer = json.loads(self.index.read_bytes())
        self.manifest = self._read(self.pointer["manifests"][0]["digest"])

    def file(self, path: str) -> bytes:
        """The content of *path* in the highest layer that has it."""
        for layer in reversed(self.manifest["layers"]):
            with tarfile.open(self.blobs / layer["digest"].removeprefix("sha256:")) as tar:
                if path in tar.getnames():
                    member = tar.extractfile(path)
                    assert member
                    return member.read()
        raise AssertionError(f"{path} is in no layer")

    def add_layer(self, files: dict[str, bytes]) -> None:
        """Put a layer with *files* on top of the image."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for path, data in files.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        config = self._read(self.manifest["config"]["digest"])
        config["rootfs"]["diff_ids"].append(f"sha256:{hashlib.sha256(buffer.getvalue()).hexdigest()}")
        config["history"].append({"created": config["created"], "created_by": "edit"})
        first = self.manifest["layers"][0]
        self.manifest["layers"].append({**first, **self._write(gzip.compress(buffer.getvalue(), mtime=0))})
        self.manifest["config"] |= self._write(json.dumps(config).encode())
        written = self._write(json.dumps(self.manifest).encode())
        for entry in self.pointer["manifests"]:  # one for each name
            entry.update(written)
        self.index.unlink()
        self.index.write_text(json.dumps(self.pointer))

    def _read(self, digest: str) -> Any:
        return json.loads((self.blobs / digest.removeprefix("sha256:")).read_bytes())

    def _write(self, data: bytes) -> dict[str, Any]:
        sha256 = hashlib.sha256(data).hexdigest()
        (self.blobs / sha256).write_bytes(data)
        return {"digest": f"sha256:{sha256}", "size": len(data)}


def row(path: str, data: bytes) -> str:
    """A row of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="compiles for the image's Python, 3.11")
def test_an_edited_file_with_edited_record_and_byte_code_is_named(
    image: dict[str, Any], tmp_path: Path
) -> None:
    """The suite names the file. An earlier suite (sha256:7d2814287017) compared files only with RECORDs."""
    layout = EditedLayout(Path(image["layout"]), tmp_path / "dist")
    lock = json.loads((ROOT / "images" / TAG / "lock.json").read_bytes())
    [version] = [wheel["version"] for wheel in lock["wheels"] if wheel["name"] == "tqdm"]
    record_path = f"{SITE}/tqdm-{version}.dist-info/RECORD"
    code = layout.file(MODULE) + b"\n# edited\n"
    record = layout.file(record_path).decode().splitlines()
    [number] = [at for at, line in enumerate(record) if line.startswith("tqdm/utils.py,")]
    record[number] = row("tqdm/utils.py", code)
    header = layout.file(BYTE_CODE)[:8]
    assert header[4] == 1, "byte-code that Python validates by the hash of its source"
    compiled = marshal.dumps(compile(code, f"/{MODULE}", "exec", dont_inherit=True))
    layout.add_layer(
        {
            MODULE: code,
            record_path: ("\n".join(record) + "\n").encode(),
            BYTE_CODE: header + importlib.util.source_hash(code) + compiled,
        }
    )

    command = [sys.executable, str(ROOT / "build.py"), "smoke", "run", TAG, "--only", "lock", "--json"]
    done = run_program([*command, "--output", str(tmp_path / "dist")], cwd=ROOT)

    assert done.returncode == 10, done.stderr
    [check] = json.loads(done.stdout)["checks"]
    assert check["outcome"] == "failed"
    assert "files that replace those of the lock's layers (3)" in check["message"]
    for path in (MODULE, BYTE_CODE, record_path):
        assert path in check["message"]
