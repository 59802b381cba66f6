"""Run each contender of a benchmark in a separate process; preparation is not timed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.meters import Failed, measure
from bench.results import Sample, Side
from bench.subject import Subject
from torchkiln.engine.known import known_layers
from torchkiln.matrix.tags import tag_of
from torchkiln.model.layer import ImageLayer
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """A command to measure. `rounds` is a lower maximum of rounds for a slow command."""

    name: str
    what: str
    run: Callable[[], Sample]
    rounds: int | None = None


def alternate(contenders: Sequence[Contender], rounds: int, say: Say) -> dict[str, Side]:
    """Run A B C, A B C, ..., so that changes of the machine or the network affect all of them."""
    samples: dict[str, list[Sample]] = {contender.name: [] for contender in contenders}
    for turn in range(rounds):
        for contender in contenders:
            if contender.rounds is None or turn < contender.rounds:
                os.sync()  # so that no contender waits until the data of another is written
                sample = contender.run()
                samples[contender.name].append(sample)
                taken = f"{sample.wall:.2f} s, {sample.core:.1f} core-seconds"
                say(f"  {contender.name}, round {turn + 1}: {taken}")
    return {
        contender.name: Side(name=contender.name, what=contender.what, samples=tuple(samples[contender.name]))
        for contender in contenders
    }


def build(
    subject: Subject,
    *,
    wheels: bool,
    bytecode: bool,
    python: bool = False,
    images: Path | None = None,
    cores: frozenset[int] | None = None,
) -> Sample:
    """Run torchkiln's build into a layout, with a separate cache; bytes are those of its wheel layers.

    If .pyc files were missing in the cache, they are kept, and the build runs again.

    :raises Failed: the build failed, or .pyc files are missing again.
    """
    layout = subject.scratch / "layout"
    for _ in range(2):
        cache = subject.cache("ours", wheels=wheels, bytecode=bytecode, python=python)
        if wheels:
            subject.read_wheels()
        packs = subject.packs(cache)
        try:
            sample = built(subject, cache, layout, images=images, cores=cores)
            if not bytecode or subject.packs(cache) == packs:
                return sample
            shutil.copytree(cache / "bytecode", subject.kept_packs, dirs_exist_ok=True)
        finally:
            remove(cache, layout)
    raise Failed("the .pyc files of one build were not sufficient for the next")


def built(
    subject: Subject,
    cache: Path,
    layout: Path,
    *,
    images: Path | None = None,
    cores: frozenset[int] | None = None,
) -> Sample:
    """Run torchkiln's build with *cache* into *layout*."""
    sample, out = run(
        subject, [*subject.command(images), "--output", str(layout)], {"TORCHKILN_CACHE": str(cache)}, cores
    )
    return replace(sample, bytes=sum(layer["size"] for layer in json.loads(out)["layers"][1:-1]))


def keep_bytecode(subject: Subject) -> tuple[ImageLayer, ...]:
    """Build once, untimed, and store the .pyc packs and the base's Python for `Subject.cache`.

    Returns the wheel layers, as a lock records them.
    """
    cache, layout = subject.cache("first", wheels=True), subject.scratch / "layout"
    built(subject, cache, layout)
    for folder in ("bytecode", "interpreters"):
        if (cache / folder).is_dir():
            (cache / folder).rename(subject.store.root / folder)
    layers = known_layers(subject.locked, Store(cache))
    remove(cache, layout)
    return layers or ()


def download(subject: Subject, method: str, connections: int) -> Sample:
    """Download the wheels with bench.fetch; bytes are the downloaded bytes."""
    folder = subject.scratch / "bare"
    folder.mkdir()
    arguments = [
        method,
        str(connections),
        str(subject.images),
        tag_of(subject.locked.resolution),
        str(folder),
    ]
    try:
        sample, out = run(subject, [*MODULE, "bench.fetch", *arguments])
        return replace(sample, bytes=int(out))
    finally:
        remove(folder)


def recompress(subject: Subject) -> Sample:
    """Run bench.recompress over all wheels."""
    folder = subject.scratch / "rival"
    folder.mkdir()
    subject.read_wheels()
    arguments = [str(subject.images), tag_of(subject.locked.resolution), str(subject.store.root), str(folder)]
    try:
        sample, out = run(subject, [*MODULE, "bench.recompress", *arguments])
        return replace(sample, bytes=int(out))
    finally:
        remove(folder)


def pip_install(subject: Subject, venv: Path) -> Sample:
    """Run pip in a new venv, with a folder of the same wheels; by default it compiles .pyc files."""
    wheels = subject.scratch / "find-links"
    wheels.mkdir(exist_ok=True)
    for wheel in subject.locked.wheels:
        if not (wheels / wheel.filename).exists():
            os.link(subject.store.wheel(wheel), wheels / wheel.filename)
    measure([sys.executable, "-m", "venv", str(venv)], env=os.environ, cwd=ROOT)
    subject.read_wheels()
    os.sync()
    pins = [f"{wheel.name}=={wheel.version}" for wheel in subject.locked.wheels]
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-cache-dir"]
    argv = [str(venv / "bin/python"), "-m", "pip", "install", *options, "--find-links", str(wheels), *pins]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    try:
        return measure(argv, env=environ | {"PIP_CONFIG_FILE": os.devnull}, cwd=subject.scratch)[0]
    finally:
        remove(wheels)


def compress(folder: Path, compressor: str) -> Sample:
    """Run `tar | compressor` on *folder*, for one layer; nothing is hashed."""
    out = folder.with_name("one-layer.tar.gz")
    script = f'set -o pipefail; tar -C "$1" -cf - . | {compressor} > "$2"'
    os.sync()
    try:
        sample, _ = measure(
            ["bash", "-c", script, "bash", str(folder), str(out)], env=os.environ, cwd=folder.parent
        )
        return replace(sample, bytes=out.stat().st_size)
    finally:
        out.unlink(missing_ok=True)


def run(
    subject: Subject,
    argv: Sequence[str],
    more: Mapping[str, str] | None = None,
    cores: frozenset[int] | None = None,
) -> tuple[Sample, bytes]:
    """Measure *argv* in the subject's environment, in this checkout."""
    return measure(argv, env={**subject.environ, **(more or {})}, cwd=ROOT, cores=cores)


def remove(*folders: Path) -> None:
    """Delete *folders*."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


MODULE = [sys.executable, "-m"]
