"""Check that torchkiln refuses no compatible wheel on the image of 2.7.1, and record the CPU time of each
check.

    .venv/bin/python -m tools.sound_wheels                      # check the wheels of sound-wheels.csv again
    .venv/bin/python -m tools.sound_wheels polars vllm==0.10.1.1 # add these wheels; default: newest release

Each wheel is downloaded, checked alone and without cached symbols, as in the first `lock` on a machine, and
deleted. Exits with 9 if a wheel is refused. Wheels of the image that are not in the cache are downloaded.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

import click
from packaging.specifiers import SpecifierSet

from torchkiln.errors import ConfigError, KilnError, Unresolvable
from torchkiln.index.download import Downloads
from torchkiln.index.package_index import PackageIndex, open_index
from torchkiln.index.uv import Pin
from torchkiln.locks.lock import load_locked
from torchkiln.model.cell import Source
from torchkiln.model.index import IndexRequest
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.operating_system import operating_system
from torchkiln.projects.fixed import fixed_wheels
from torchkiln.projects.symbols.libraries import RECORDS, check_wheels, has_platform, library_names
from torchkiln.store.store import Store, cache_root
from torchkiln.util.files import write_atomic
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
LIST = ROOT / "tools" / "sound-wheels.csv"
_AT_ONCE, _BYTES = 8, 2 << 30  # maximum number of wheels on disk at a time
_FIELDS = ("name", "version", "filename", "sha256", "size", "libraries", "seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """A wheel, with the findings and the CPU time of its check."""

    wheel: LockedWheel
    libraries: int
    seconds: float  # CPU time
    faults: tuple[str, ...]
    unread: tuple[str, ...]


class OnTheImage:
    """The check of wheels of the index on the image of *cell*; *scratch* is a cache that it may change."""

    def __init__(self, cell: LockedCell, scratch: Store) -> None:
        self.cell, self.store = cell, scratch
        self.index: PackageIndex = open_index(os.environ, scratch)
        self.fixed = tuple(fixed_wheels(cell.wheels).values())

    @cached_property
    def request(self) -> IndexRequest:
        """The request for wheels: Python version and C library."""
        cell = self.cell.resolution.cell
        return IndexRequest(
            requirements=(),
            constraints=(),
            python=cell.python,
            glibc=operating_system(cell.os).glibc,
            as_of=f"{datetime.now(timezone.utc):%Y-%m-%d}",
            keep=(),
            bound=(),
        )

    def link(self, kept: Store) -> None:
        """Link files of the image from the cache *kept*; download wheels that *kept* lacks.

        :raises ConfigError: *kept* does not have the base.
        """
        base = self.cell.base
        if not kept.has_blob(base.digest, base.size):
            raise ConfigError(f"the base of {TAG} is not in the cache", hint="run: make image")
        downloads = Downloads(self.index.pages)
        for wheel in filter(has_platform, self.fixed):
            if not kept.has_wheel(wheel):
                downloads.fetch_wheel(wheel, kept)
            _link(kept.wheel(wheel), self.store.wheel(wheel))
        _link(kept.blob(base.digest), self.store.blob(base.digest))

    def wheel_of(self, text: str) -> LockedWheel | None:
        """The wheel of `NAME==VERSION`, or of the newest release of `NAME`; None if it is for any
        platform."""
        name, _, version = text.partition("==")
        wanted = self.request
        version = version or self.index.newest(name, wanted, SpecifierSet())
        if not version:
            raise Unresolvable(f"{name}: no wheel for this image", hint="name another release")
        files = self.index.pages.uploaded_before(wanted.as_of, name, Source.DEFAULT)
        prefix = f"-{version}-"
        hashes = frozenset(file.sha256 for file in files if prefix in file.filename)
        [wheel] = self.index.locked(
            [Pin(name=name, version=version, hashes=hashes, index=Source.DEFAULT)], wanted
        )
        return wheel if has_platform(wheel) else None

    def check(self, wheel: LockedWheel) -> Checked:
        """Check *wheel*, which is in the cache, without cached symbols."""
        shutil.rmtree(self.store.root / "records" / RECORDS, ignore_errors=True)
        began = time.process_time()
        found = check_wheels([wheel], self.cell, self.store)
        return Checked(
            wheel=wheel,
            seconds=time.process_time() - began,
            libraries=len(library_names(wheel, self.store)),
            faults=tuple(f"{wheel.filename}: {fault.path} {fault.sentence}" for fault in found.faults),
            unread=found.unread,
        )

    def checks(self, wheels: Sequence[LockedWheel]) -> Iterator[Checked]:
        """Check each of *wheels*; some are downloaded together, then deleted."""
        downloads = Downloads(self.index.pages)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for some in _parts(wheels):
                paths = list(pool.map(lambda wheel: downloads.fetch_wheel(wheel, self.store), some))
                yield from map(self.check, some)
                for path in paths:
                    path.unlink()


def _parts(wheels: Iterable[LockedWheel]) -> Iterator[list[LockedWheel]]:
    part: list[LockedWheel] = []
    for wheel in wheels:
        if len(part) == _AT_ONCE or sum(one.size for one in (*part, wheel)) > _BYTES:
            yield part
            part = []
        part.append(wheel)
    if part:
        yield part


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(source, target)


def listed() -> tuple[LockedWheel, ...]:
    """The wheels of the list."""
    with LIST.open(newline="") as file:
        return tuple(
            LockedWheel(
                name=row["name"],
                version=row["version"],
                filename=row["filename"],
                sha256=row["sha256"],
                size=int(row["size"]),
                index=Source.DEFAULT,
            )
            for row in csv.DictReader(file)
        )


@contextmanager
def on_the_image() -> Iterator[OnTheImage]:
    """The image of TAG, with a cache that is deleted afterwards."""
    kept = Store(cache_root())
    with tempfile.TemporaryDirectory(prefix="torchkiln-wheels-", dir=kept.root.parent) as folder:
        image = OnTheImage(load_locked(ROOT / "images", TAG), Store(Path(folder)))
        image.link(kept)
        yield image


def _record(new: Iterable[Checked]) -> None:
    """Write the list with *new* results in it."""
    rows: dict[str, dict[str, str]] = {}
    if LIST.exists():
        with LIST.open(newline="") as file:
            rows = {row["filename"]: row for row in csv.DictReader(file)}
    for checked in new:
        wheel = checked.wheel
        values = (wheel.name, wheel.version, wheel.filename, wheel.sha256, wheel.size)
        cells = (*map(str, values), str(checked.libraries), f"{checked.seconds:.2f}")
        rows[wheel.filename] = dict(zip(_FIELDS, cells, strict=True))
    text = io.StringIO()
    writer = csv.DictWriter(text, _FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows[filename] for filename in sorted(rows, key=str.lower))
    write_atomic(LIST, text.getvalue().encode())


def main(names: Sequence[str]) -> int:
    """Check the wheels; returns the exit code."""
    with on_the_image() as image:
        wheels = [_found(image, name) for name in names] if names else listed()
        refused, done = 0, []
        for checked in image.checks([wheel for wheel in wheels if wheel]):
            wheel = checked.wheel
            numbers = f"{checked.libraries} libraries, {wheel.size / 1e6:.1f} MB, {checked.seconds:.1f} s"
            click.echo(f"{wheel.filename}: {numbers}")
            for line in (*checked.faults, *(f"not read: {what}" for what in checked.unread)):
                click.echo(f"  {line}")
            if checked.faults or checked.unread:
                refused += 1
            elif checked.libraries:
                done.append(checked)
                _record(done)
    seconds = sorted(checked.seconds for checked in done)
    if seconds:
        click.echo(
            f"{len(done)} wheels accepted; seconds of CPU: median {seconds[len(seconds) // 2]:.1f},"
            f" at most {seconds[-1]:.1f}; {refused} refused"
        )
    return 9 if refused else 0


def _found(image: OnTheImage, name: str) -> LockedWheel | None:
    try:
        return image.wheel_of(name)
    except KilnError as error:
        click.echo(f"{name}: {error.message}", err=True)
        return None


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KilnError as fault:
        click.echo(f"error: {fault.message}\nhint: {fault.hint}", err=True)
        sys.exit(fault.exit_code)
