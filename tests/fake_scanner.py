"""A fake scanner: it takes the real scanner's arguments, reads a layout, and prints a recorded report.

It accepts some of Trivy's options, from `trivy image --help` of 0.59.1 (Trivy's source of 2026-08 has them),
and some of Grype's, from `AddFlags` in cmd/grype/cli/options/grype.go. All others are errors.
It runs under `python -IS`, without torchkiln and without installed packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any


def main(tool: str, does: str, home: str) -> None:
    """Behave like *tool*, `trivy` or `grype`, whose files are in the folder *home*.

    :param does: `scan` prints the report; `mute` also prints it, but `trivy version` fails;
        `fail` exits with 1; `hang` does not end; `babble` prints text that is not JSON.
    """
    call = {"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}
    with (Path(home) / "calls.jsonl").open("a") as memory:
        memory.write(json.dumps(call) + "\n")
    place = (_trivy if tool == "trivy" else _grype)(sys.argv[1:], does)
    if does == "fail":
        sys.stderr.write("FATAL\tno database: https://user:secret@mirror.example/db: connection refused\n")
        sys.exit(1)
    if does == "hang":
        child = subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(120)"])
        (Path(home) / "child").write_text(str(child.pid))
        child.wait()
    if does == "babble":
        sys.stdout.write("all is well")
    elif does in ("scan", "mute"):
        manifest, config = _look(Path(place))
        document = (Path(home) / f"{tool}.json").read_text()
        sys.stdout.write(
            document.replace("sha256:" + "d" * 64, manifest).replace("sha256:" + "c" * 64, config)
        )
    sys.stderr.write("INFO\tlooked\n")


def _trivy(argv: list[str], does: str) -> str:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    commands = parser.add_subparsers(required=True, dest="command")
    image = commands.add_parser("image", allow_abbrev=False)
    image.add_argument("--input", required=True)
    image.add_argument("--format", choices=["table", "json", "sarif", "cyclonedx", "spdx-json"])
    image.add_argument("--scanners")
    image.add_argument("--no-progress", action="store_true")
    image.add_argument("--timeout", type=_duration)
    image.add_argument("--severity")
    image.add_argument("--ignore-unfixed", action="store_true")
    version = commands.add_parser("version", allow_abbrev=False)
    version.add_argument("-f", "--format", choices=["json"])
    options = parser.parse_args(argv)
    if options.command == "version":
        if does == "mute":
            sys.exit(1)
        version = {
            "Version": "0.59.1",
            "VulnerabilityDB": {"Version": 2, "UpdatedAt": "2026-11-22T06:00:00Z"},
        }
        sys.stdout.write(json.dumps(version))
        sys.exit()
    # Trivy reads FOLDER:TAG and FOLDER@DIGEST as an image in a layout, so the path must not contain : or @.
    assert (options.format, re.search("[:@]", options.input)) == ("json", None)
    return str(options.input)


def _duration(text: str) -> str:
    if not re.fullmatch(r"([0-9.]+(h|m|s|ms))+", text):
        raise ValueError
    return text


def _grype(argv: list[str], does: str) -> str:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("image")
    parser.add_argument("-o", "--output", action="append")
    parser.add_argument("-c", "--config", type=Path)
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("--file")
    parser.add_argument("--only-fixed", action="store_true")
    options = parser.parse_args(argv)
    scheme, _, place = options.image.partition(":")
    assert (scheme, options.output) == ("oci-dir", ["json"])
    assert options.config is None or options.config.is_file()
    return place


def _look(layout: Path) -> tuple[str, str]:
    """The digests of manifest and config of the only image in *layout*; every blob must match its digest."""
    assert json.loads((layout / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    manifest = json.loads(_blob(layout, entry))
    for layer in manifest["layers"]:
        _blob(layout, layer)
    return entry["digest"], "sha256:" + hashlib.sha256(_blob(layout, manifest["config"])).hexdigest()


def _blob(layout: Path, entry: dict[str, Any]) -> bytes:
    data = (layout / "blobs" / "sha256" / entry["digest"].removeprefix("sha256:")).read_bytes()
    assert (len(data), "sha256:" + hashlib.sha256(data).hexdigest()) == (entry["size"], entry["digest"])
    return data
