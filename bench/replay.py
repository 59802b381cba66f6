"""Replay Debian's uploads of the last days to the packages of debian12's base, and time each refresh.

    python -m bench.replay [DAYS] [FOLDER]     # 30 days; a clone and an archive of 2 GB are made in FOLDER

Days and versions are those in the packages' changelogs. The archive has the real package from the day of its
upload on, before that the same files with the earlier version, because mirrors keep only the newest.
For each day with an upload: `refresh` of all locked runtime cells of debian12. After the last day: a build of
2.7.1, with tier 0. The index has the packages' own priorities, not Debian's, by which apt is required: these
bases have no apt.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

from tests.servers.debian_archive import SUITES, DebianArchive, archive
from tests.servers.ubuntu_archive import packed, run, write_suite
from torchkiln.base.archive import deb_path, read_files
from torchkiln.cli.shared.console import open_cache
from torchkiln.gate.gpu_stack import gpu_stack
from torchkiln.locks.lock import load_locked
from torchkiln.model.lock import DebFile, LockedCell
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
_CHANGELOG = re.compile(r"usr/share/doc/[^/]+/changelog(\.Debian)?(\.\w+)?\.gz")
_ENTRY = re.compile(r"^\S+ \(([^)]+)\) .*?^ -- .*?>  (.*?)$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Upload:
    """A version of a package, from `day` on."""

    day: date
    version: str


def uploads(path: Path) -> list[Upload]:
    """The versions in the changelog of the package at *path*, the newest first; empty without a changelog."""
    tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(tar)) as files:
        names = sorted(member.name for member in files if _CHANGELOG.search(member.name) and member.isfile())
        if not names:
            return []
        data = files.extractfile(names[0])
        assert data is not None
        text = gzip.decompress(data.read()).decode("utf-8", "replace")
    found = [Upload(parsedate_to_datetime(day).date(), version) for version, day in _ENTRY.findall(text)]
    version = run("dpkg-deb", "--field", path, "Version").strip()
    return found if found and found[0].version == version else []


def earlier(path: Path, upload: Upload, newest: str, scratch: Path) -> Path:
    """The package at *path* with the version of *upload*, also in the relations to packages of its source."""
    tree = scratch / f"{path.stem}-{upload.day}"
    run("dpkg-deb", "--raw-extract", path, tree)
    control = tree / "DEBIAN/control"
    text = re.sub(r"^Version: .*$", f"Version: {upload.version}", control.read_text(), flags=re.MULTILINE)
    control.write_text(text.replace(f"= {newest})", f"= {upload.version})"))
    made = packed(tree, tree.with_name(f"{tree.name}.deb"))
    shutil.rmtree(tree)
    return made


def publish(place: DebianArchive, debs: dict[str, Path]) -> None:
    """Write the suites of *place* with *debs*, by name."""
    shutil.rmtree(place.folder, ignore_errors=True)
    pool = place.folder / "pool/main"
    pool.mkdir(parents=True)
    for path in debs.values():
        os.symlink(path, pool / path.name.replace("%3a", "_"))
    for suite in SUITES:
        pools = {"main": pool if suite == SUITES[0] else None}
        write_suite(place.folder, suite, pools, Origin="Debian", Suite=suite, Codename=suite)
        place.sign(suite)


def replay(days: int, folder: Path) -> Iterator[dict[str, object]]:
    """One row for each day with uploads."""
    store = open_cache()
    debs = _locked(store)
    known = {name: uploads(path) for name, path in debs.items()}
    start = max(found[0].day for found in known.values() if found) - timedelta(days=days)
    dates = sorted({one.day for found in known.values() for one in found if one.day > start})
    place, made, clone = archive(folder / "archive"), folder / "made", folder / "clone"
    made.mkdir()
    run("git", "clone", "--quiet", ROOT, clone)
    for other in (*clone.glob("images/*-devel*"), *clone.glob("images/*debian13*")):
        shutil.rmtree(other)
    for day in (start, *dates):
        present = dict(debs)
        for name, found in known.items():
            first = next((one for one in found if one.day <= day), None)
            if first and first != found[0]:
                present[name] = earlier(debs[name], first, found[0].version, made)
        publish(place, present)
        with place.served() as address:
            environ = {**os.environ, **place.environ(address)}
            before, began = _lock(clone), time.monotonic()
            tags = _kiln("refresh", "--os", "debian12", clone=clone, environ=environ).split()
            refreshed, after, built = time.monotonic(), _lock(clone), {}
            if day == dates[-1]:
                built = json.loads(_kiln("build", TAG, "--json", clone=clone, environ=environ))
        shutil.rmtree(made)
        made.mkdir()
        yield {
            "day": str(day),
            "packages": sum(one.day == day for found in known.values() for one in found),
            "locks": len(tags),
            "refresh": round(refreshed - began, 1),
            "same GPU stack": gpu_stack(before) == gpu_stack(after),
            "base": after.base.size,
            "build and tier 0": round(time.monotonic() - refreshed, 1) if built else None,
            "built": built.get("digest"),
        }


def _locked(store: Store) -> dict[str, Path]:
    """The locked packages of debian12's base, by name and architecture."""
    files = read_files(ROOT / "images", _lock(ROOT).base, store)
    assert files is not None, f"{TAG} has no list of packages"
    return {deb.filename.split("_")[0]: _path(store, deb) for deb in files.debs}


def _path(store: Store, deb: DebFile) -> Path:
    path = store.root / deb_path(deb)
    assert path.is_file(), f"{deb.filename} is not in the cache: build {TAG} without its base first"
    return path


def _kiln(*words: str, clone: Path, environ: dict[str, str]) -> str:
    return run(sys.executable, "build.py", *words, cwd=clone, env=environ)


def _lock(root: Path) -> LockedCell:
    return load_locked(root / "images", TAG)


if __name__ == "__main__":
    span, into = [*sys.argv[1:], *("30", "replay")[len(sys.argv) - 1 :]]
    for row in replay(int(span), Path(into).resolve()):
        print(json.dumps(row), flush=True)
