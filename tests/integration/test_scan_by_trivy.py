"""`torchkiln scan` with a real Trivy, if it is on the PATH, and with a local database, so without a network.

Trivy's database is a bbolt file (go.etcd.io/bbolt, page.go and bucket.go), whose meta pages state the page
size. The file here has two meta pages, a list of free pages, and one leaf page with all buckets inline.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.scans import by_trivy, two_images
from torchkiln.cli.scan import scan
from torchkiln.sbom.scanner_report import read


@pytest.mark.skipif(not shutil.which("trivy"), reason="no trivy on the PATH: see docs/scan.md")
def test_a_real_trivy_reports_the_recorded_vulnerabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trivy scans the second of two images. The user's ignore files and variables have no effect."""
    layout = two_images(tmp_path)
    write_database(tmp_path / "cache")
    monkeypatch.setenv("TRIVY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRIVY_SKIP_DB_UPDATE", "true")
    monkeypatch.setenv("TRIVY_SEVERITY", "LOW")
    monkeypatch.chdir(tmp_path)
    Path(".trivyignore").write_text("CVE-2024-6345\n")

    done = CliRunner().invoke(scan, [f"{layout.path}:b", "--json", "--fail-on", "unknown"])

    result = json.loads(done.stdout)
    reported = {
        (entry["id"], entry["package"], entry["installed"], entry["fixed"]) for entry in result["refused"]
    }
    image = layout.image("b")
    recorded = read(json.dumps(by_trivy(image)).encode(), where="recorded")
    assert result["digest"] == image.manifest
    assert (result["system"], result["database"]) == ("debian 12.9", "2026-11-22T06:00:00Z")
    assert result["version"]
    assert reported == {
        (finding.id, finding.package, finding.installed, finding.fixed) for finding in recorded.findings
    }
    assert [entry["path"] for entry in result["refused"]] == [finding.path for finding in recorded.findings]
    assert [entry["severity"] for entry in result["refused"]] == [
        finding.severity.word for finding in recorded.findings
    ]


# --- a database with the vulnerabilities of tests/scans.py -----------------------------------------


_PAGE = 1 << 16
_META, _FREE, _LEAF = 0x04, 0x10, 0x02
_DEBIAN, _PIP = "debian 12", "pip::GitHub Security Advisory Pip"
_WILL_NOT_FIX = 5  # trivy-db, pkg/types/status.go

Bucket = Mapping[str, "Bucket | bytes"]


UPDATED = "2026-11-22T06:00:00Z"


def write_database(cache: Path) -> None:
    """Write a cache folder of Trivy to *cache*."""
    (cache / "db").mkdir(parents=True)
    (cache / "db" / "trivy.db").write_bytes(_database(_knowledge()))
    about = {
        "Version": 2,
        "NextUpdate": "2099-01-01T00:00:00Z",
        "UpdatedAt": UPDATED,
        "DownloadedAt": UPDATED,
    }
    (cache / "db" / "metadata.json").write_text(json.dumps(about))


def _knowledge() -> Bucket:
    def json_value(**value: Any) -> bytes:
        return json.dumps(value).encode()

    def fault(severity: str, source: str, grade: int) -> bytes:
        return json_value(Title="a title", Severity=severity, VendorSeverity={source: grade})

    return {
        _DEBIAN: {
            "openssl": {"CVE-2024-13176": json_value(FixedVersion="3.0.15-1~deb12u2")},
            "zlib": {"CVE-2023-45853": json_value(Status=_WILL_NOT_FIX)},
        },
        _PIP: {
            "jinja2": {
                "CVE-2024-56326": json_value(PatchedVersions=["3.1.5"], VulnerableVersions=["<= 3.1.4"])
            },
            "setuptools": {
                "CVE-2024-6345": json_value(PatchedVersions=["70.0.0"], VulnerableVersions=["< 70.0"])
            },
        },
        "data-source": {
            _DEBIAN: json_value(ID="debian", Name="Debian Security Tracker"),
            _PIP: json_value(ID="ghsa", Name="GitHub Security Advisory Pip"),
        },
        "vulnerability": {
            "CVE-2024-13176": fault("MEDIUM", "nvd", 2),
            "CVE-2023-45853": fault("CRITICAL", "nvd", 4),
            "CVE-2024-56326": fault("HIGH", "ghsa", 2),
            "CVE-2024-6345": fault("HIGH", "ghsa", 3),
        },
    }


def _database(root: Bucket) -> bytes:
    pages = [_meta(0), _meta(1), _page(2, _FREE, 0, b""), _leaf(3, root)]
    assert all(len(page) <= _PAGE for page in pages)
    return b"".join(page.ljust(_PAGE, b"\0") for page in pages)


def _meta(number: int) -> bytes:
    head = struct.pack("<IIIIQQQQQ", 0xED0CDAED, 2, _PAGE, 0, 3, 0, 2, 4, number)
    return _page(number, _META, 0, head + struct.pack("<Q", _fnv(head)))


def _page(number: int, kind: int, count: int, body: bytes) -> bytes:
    return struct.pack("<QHHI", number, kind, count, 0) + body


def _leaf(number: int, bucket: Bucket) -> bytes:
    """A leaf page: headers of 16 bytes, keys, values; a bucket's value is a 16-byte header and its leaf."""
    heads, data = b"", b""
    for at, name in enumerate(sorted(bucket, key=str.encode)):
        key, value = name.encode(), bucket[name]
        inner = isinstance(value, Mapping)
        stored = bytes(16) + _leaf(0, value) if isinstance(value, Mapping) else value
        heads += struct.pack("<IIII", inner, (len(bucket) - at) * 16 + len(data), len(key), len(stored))
        data += key + stored
    return _page(number, _LEAF, len(bucket), heads + data)


def _fnv(data: bytes) -> int:
    """FNV-1a, 64 bits."""
    found = 0xCBF29CE484222325
    for byte in data:
        found = (found ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return found
