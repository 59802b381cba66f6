"""A small image, the report of each scanner about it, and `torchkiln scan` in a test's folder."""

from __future__ import annotations

import json
import sys
import time
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.oci_samples import BlobFolder, Member, files, members_of, plan, tar_of
from torchkiln.cli.scan import scan
from torchkiln.oci.layout import ImageOnDisk, Layout, open_layout, write_image
from torchkiln.util.places import ROOT

SITE = "opt/venv/lib/python3.11/site-packages"
PLACES = {
    name: f"{SITE}/{name}-{version}.dist-info/METADATA"
    for name, version in (("jinja2", "3.1.4"), ("setuptools", "65.5.0"))
}
_DEBS = (("libssl3", "3.0.15-1~deb12u1", "openssl"), ("zlib1g", "1:1.2.13.dfsg-1", "zlib"))
_OS = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nVERSION_ID="12"\nID=debian\n'
# name, CVE, installed version, fixed version, severity, GitHub's ID
FAULTS = (
    ("zlib1g", "CVE-2023-45853", "1:1.2.13.dfsg-1", None, "critical", None),
    ("setuptools", "CVE-2024-6345", "65.5.0", "70.0.0", "high", "GHSA-cx63-2mw6-8hw5"),
    ("jinja2", "CVE-2024-56326", "3.1.4", "3.1.5", "medium", "GHSA-q2x7-8rv6-6q7h"),
    ("libssl3", "CVE-2024-13176", "3.0.15-1~deb12u1", "3.0.15-1~deb12u2", "medium", None),
)


def two_images(folder: Path) -> Layout:
    """The layout `dist` with the image under the name `a`, and an image with other labels as `b`."""
    status = "\n".join(
        f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {version}\n"
        f"Source: {source}\nMaintainer: nobody\nDescription: {name}\n"
        for name, version, source in _DEBS
    )
    base = (
        *files(etc__debian_version=b"12.9\n", var__lib__dpkg__status=status.encode()),
        *(Member(name="usr/"), Member(name="usr/lib/")),
        Member(name="usr/lib/os-release", data=_OS.encode()),
        Member(name="etc/os-release", link="../usr/lib/os-release"),
    )
    steps = SITE.split("/")
    wheels = [Member(name="/".join(steps[:depth]) + "/") for depth in range(1, len(steps) + 1)]
    for place in PLACES.values():
        name, version = place.split("/")[-2].removesuffix(".dist-info").split("-")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        wheels += [Member(name=place.removesuffix("METADATA")), Member(name=place, data=metadata.encode())]
    store = BlobFolder(folder / "store")
    layers = [
        store.layer("base", tar_of(base)),
        store.layer("wheels", tar_of(wheels), pack=lambda tar: members_of(tar, 5)),
    ]
    for tag in ("a", "b"):
        write_image(folder / "dist", plan(tag, labels=(("name", tag),)), layers, store.path)
    return open_layout(folder / "dist")


def by_trivy(image: ImageOnDisk | None = None, **changes: Any) -> dict[str, Any]:
    """Trivy's report of *image*, by default with placeholder digests, which the fake scanner replaces."""
    config = image.config_digest if image else "sha256:" + "c" * 64
    systems, wheels = [], []
    for name, cve, installed, fixed, severity, _ in FAULTS:
        one: dict[str, Any] = {
            "VulnerabilityID": cve,
            "PkgName": name,
            "PkgIdentifier": {"PURL": f"pkg:generic/{name}@{installed}", "UID": "8f6699c66372a264"},
            "InstalledVersion": installed,
            "Status": "fixed" if fixed else "will_not_fix",
            "Layer": {"Digest": "sha256:" + "0" * 64, "DiffID": "sha256:" + "1" * 64},
            "SeveritySource": "nvd",
            "PrimaryURL": f"https://advisories.example/{cve.lower()}",
            "DataSource": {"ID": "debian", "Name": "Debian Security Tracker"},
            "Title": "a title",
            "Severity": severity.upper(),
            "VendorSeverity": {"nvd": 2},
            "CVSS": {"nvd": {"V3Vector": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H", "V3Score": 9.8}},
            "PublishedDate": "2024-10-14T02:15:09.18Z",
        }
        if fixed:
            one["FixedVersion"] = fixed
        if name in PLACES:
            wheels.append({**one, "PkgPath": PLACES[name]})
        else:
            systems.append({**one, "PkgID": f"{name}@{installed}"})
    return {
        "SchemaVersion": 2,
        "CreatedAt": "2026-11-22T18:05:05.262226104Z",
        "ArtifactName": "image",
        "ArtifactType": "container_image",
        "Metadata": {
            "OS": {"Family": "debian", "Name": "12.9"},
            "ImageID": config,
            "DiffIDs": ["sha256:" + "1" * 64],
            "ImageConfig": {"architecture": "amd64", "os": "linux", "config": {"Cmd": None}},
        },
        "Results": [
            {
                "Target": "image (debian 12.9)",
                "Class": "os-pkgs",
                "Type": "debian",
                "Vulnerabilities": systems,
            },
            {"Target": "Python", "Class": "lang-pkgs", "Type": "python-pkg", "Vulnerabilities": wheels},
        ],
        **changes,
    }


def by_grype(image: ImageOnDisk | None = None, **changes: Any) -> dict[str, Any]:
    """Grype's report of *image*, by default with placeholder digests, which the fake scanner replaces."""
    manifest = image.manifest if image else "sha256:" + "d" * 64
    config = image.config_digest if image else "sha256:" + "c" * 64
    matches = []
    for name, cve, installed, fixed, severity, ghsa in FAULTS:
        about = {"dataSource": "https://advisories.example/", "urls": [], "cvss": []}
        matches.append(
            {
                "vulnerability": {
                    "id": ghsa or cve,
                    **about,
                    "severity": severity.capitalize(),
                    "fix": {
                        "versions": [fixed] if fixed else [],
                        "state": "fixed" if fixed else "wont-fix",
                    },
                    "advisories": [],
                    "risk": 1.68,
                },
                "relatedVulnerabilities": [
                    {"id": cve, **about, "namespace": "nvd:cpe", "severity": "Critical"}
                ],
                "matchDetails": [
                    {
                        "type": "exact-direct-match",
                        "matcher": "dpkg-matcher",
                        "searchedBy": {"distro": {"type": "debian", "version": "12"}},
                        "found": {"versionConstraint": "none (deb)"},
                    }
                ],
                "artifact": {
                    "id": "a246fd2054833c93",
                    "name": name,
                    "version": installed,
                    "type": "python" if name in PLACES else "deb",
                    "locations": [
                        {
                            "path": f"/{PLACES[name]}" if name in PLACES else "/var/lib/dpkg/status",
                            "layerID": "sha256:" + "1" * 64,
                        }
                    ],
                    **{key: [] for key in ("licenses", "cpes", "upstreams")},
                    "purl": f"pkg:generic/{name}@{installed}",
                },
            }
        )
    target = {
        "userInput": "image",
        "imageID": config,
        "manifestDigest": manifest,
        **{key: [] for key in ("tags", "layers", "repoDigests")},
        **dict.fromkeys(("manifest", "config"), None),
        "imageSize": 65,
        "architecture": "amd64",
        "os": "linux",
    }
    return {
        "matches": matches,
        "source": {"type": "image", "target": target},
        "distro": {"name": "debian", "version": "12", "idLike": []},
        "descriptor": {
            "name": "grype",
            "version": "0.115.0",
            "configuration": {"output": ["json"], "only-fixed": False},
            "db": {"status": {"schemaVersion": "v6.1.9", "built": "2026-11-22T06:00:00Z", "valid": True}},
            "timestamp": "2026-11-22T18:05:05Z",
        },
        **changes,
    }


DOCUMENTS = {"trivy": by_trivy, "grype": by_grype}


def fake_program(folder: Path, tool: str, does: str = "scan") -> Path:
    """Write the fake scanner *tool*, `trivy` or `grype`, into *folder*; *does* as in tests/fake_scanner.py.

    The fake scanner logs each call to `calls.jsonl` in *folder*.
    """
    folder.mkdir(exist_ok=True)
    folder = folder.resolve()
    (folder / f"{tool}.json").write_text(json.dumps(DOCUMENTS[tool]()))
    program = folder / tool
    program.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from tests.fake_scanner import main\nmain({tool!r}, {does!r}, {str(folder)!r})\n"
    )
    program.chmod(0o755)
    return program


def today() -> date:
    return datetime.now(timezone.utc).date()


def scan_command(layout: Layout, *more: str, target: str = "a") -> Any:
    return CliRunner().invoke(scan, [target, "--output", str(layout.path), *more])


def reported(document: dict[str, Any]) -> tuple[str, str]:
    Path("scan.json").write_text(json.dumps(document))
    return ("--report", "scan.json")


def calls() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("bin/calls.jsonl").read_text().splitlines()]


def allow(*entries: dict[str, str], name: str = "vulnerabilities.yaml") -> str:
    Path(name).write_text(json.dumps(entries))
    return name


def entry(name: str, days: int = 30, **more: str) -> dict[str, str]:
    return {"id": name, "reason": "not reachable", "until": str(today() + timedelta(days=days)), **more}


def has_ended(pid: str) -> bool:
    """Whether the process has ended, or ends within five seconds."""
    stat = Path("/proc", pid, "stat")
    for _ in range(100):
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX":
            return True
        time.sleep(0.05)
    return False
