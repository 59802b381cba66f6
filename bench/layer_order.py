"""Measure what an engine pulls and unpacks if the base is the lowest layer, or above the wheels.

    python -m bench.layer_order LAYOUT TAG REGISTRY 'NAME=COMMAND' ...

Writes two forms of the image TAG to LAYOUT-order, and a refreshed image of each, in which one file of the
base differs; copies the four to REGISTRY with skopeo. Each COMMAND pulls $IMAGE, and deletes all
images of its engine if $IMAGE is empty. For each engine and order: pull the image, then the refreshed one.
The bytes are those of the loopback interface, so REGISTRY must be on this host, and nothing else may use it.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from isal import igzip

from torchkiln.oci.compression import GZIP

_CHANGED = "etc/debian_version"


def write_forms(layout: Path, tag: str, out: Path) -> None:
    """Write `first`, `first-new`, `above`, `above-new` to *out*: base lowest or above wheels, old or new."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(layout, out, copy_function=os.link)
    index = json.loads((out / "index.json").read_text())
    (entry,) = (
        found
        for found in index["manifests"]
        if found["annotations"]["org.opencontainers.image.ref.name"] == tag
    )
    manifest = _json(out, entry["digest"])
    config = _json(out, manifest["config"]["digest"])
    layers = list(zip(manifest["layers"], config["rootfs"]["diff_ids"], config["history"], strict=True))
    base, *wheels, top = layers
    entries = []
    for ending, lowest in (("", base), ("-new", _changed(out, base))):
        for name, ordered in (("first", [lowest, *wheels, top]), ("above", [*wheels, lowest, top])):
            descriptors, diff_ids, history = zip(*ordered, strict=True)
            described = {**config, "rootfs": {"type": "layers", "diff_ids": diff_ids}, "history": history}
            own = _put(out, json.dumps(described).encode())
            document = {**manifest, "config": {**manifest["config"], **own}, "layers": descriptors}
            blob = _put(out, json.dumps(document).encode())
            named = {"org.opencontainers.image.ref.name": name + ending}
            entries.append({"mediaType": entry["mediaType"], **blob, "annotations": named})
    (out / "index.json").unlink()
    (out / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))


def _json(out: Path, digest: str) -> Any:
    return json.loads((out / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes())


def _put(out: Path, data: bytes) -> dict[str, Any]:
    name = hashlib.sha256(data).hexdigest()
    (out / "blobs/sha256" / name).write_bytes(data)
    return {"digest": f"sha256:{name}", "size": len(data)}


def _changed(out: Path, base: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """*base* with another `etc/debian_version`."""
    descriptor, _, history = base
    tar = io.BytesIO()
    source = out / "blobs/sha256" / descriptor["digest"].removeprefix("sha256:")
    with (
        GZIP.open(source) as stream,
        tarfile.open(fileobj=stream, mode="r|") as old,
        tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in old:
            content = old.extractfile(member) if member.isfile() else None
            if member.name.removeprefix("./") == _CHANGED:
                content, member.size = io.BytesIO(b"refreshed\n"), 10
            new.addfile(member, content)
    blob = _put(out, igzip.compress(tar.getvalue(), 1))
    return {**descriptor, **blob}, f"sha256:{hashlib.sha256(tar.getvalue()).hexdigest()}", history


def _received() -> int:
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if "lo:" in line)
    return int(line.split()[1])


def _run(command: str, image: str) -> tuple[float, float]:
    """Seconds and gigabytes of *command*."""
    began, before = time.monotonic(), _received()
    subprocess.run(
        command, shell=True, check=True, env={**os.environ, "IMAGE": image}, stdout=subprocess.DEVNULL
    )
    return round(time.monotonic() - began, 1), round((_received() - before) / 1e9, 2)


def main() -> None:
    """Print a line of JSON for each engine, order and round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("layout", type=Path)
    parser.add_argument("tag")
    parser.add_argument("registry")
    parser.add_argument("engines", nargs="+", metavar="NAME=COMMAND")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    out = chosen.layout.with_name(f"{chosen.layout.name}-order")
    write_forms(chosen.layout, chosen.tag, out)
    for name in ("first", "first-new", "above", "above-new"):
        target = f"docker://{chosen.registry}/order:{name}"
        subprocess.run(
            ["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{out}:{name}", target], check=True
        )
    shutil.rmtree(out)
    for number in range(chosen.rounds):
        for engine, _, command in (text.partition("=") for text in chosen.engines):
            for order in ("first", "above"):
                _run(command, "")
                pulled = _run(command, f"{chosen.registry}/order:{order}")
                refreshed = _run(command, f"{chosen.registry}/order:{order}-new")
                row = {
                    "round": number,
                    "engine": engine,
                    "order": order,
                    "pull": pulled,
                    "refresh": refreshed,
                }
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()
            _run(command, "")


if __name__ == "__main__":
    main()
