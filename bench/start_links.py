"""Benchmark the start of images on a node, over links of several speeds: pulled, or mounted from a share.

The second image is the first one with another layer on top, such as the code of another project.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.meters import Failed, measure
from bench.node_network import ServedImage, Share, digest_of, own_network, registry, set_rate, share, sshfs
from bench.results import Figure, Outcome, Sample, Side
from bench.sides import Contender, Say, alternate, remove
from bench.start import STEP, unimportable
from bench.subject import KILN, Subject
from tests.engine.fixture import reach
from tests.engine.root import NoEngine
from tests.erofs_tools import mkfs_in
from torchkiln.matrix.tags import tag_of
from torchkiln.model.plan import OverlayFile
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.erofs import convert, find_mkfs, place_of
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.oci.tar import archive
from torchkiln.oci.unpack import LayerBlob
from torchkiln.runtimes.image_root import layers_of
from torchkiln.runtimes.unpacked import image_env

LINKS: Mapping[str, int] = {"100 Mbit/s": 10**8, "1 Gbit/s": 10**9, "10 Gbit/s": 10**10}
WHICH = ("first image", "second image")
_PULLED: Mapping[str, str] = {
    "docker, gzip": "`docker pull`, `docker run`",
    "docker, zstd": "`docker pull`, `docker run`",
}
_MOUNTED: Mapping[str, str] = {
    "squashfs on a share": "mounted; a file for each image",
    "EROFS store on a share": "mounted; a file for each layer",
}
_SLOW = 10**8  # no pulls on such a link, because they take minutes
_SPACE = 25 * 10**9  # bytes; an image with zstd, and one in the engine, compressed and unpacked; and reserve
_AIMS = (5.0, 3.0)  # seconds at most, of a mounted image: the first, the second
_AIMED = "1 Gbit/s"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_PULL = 'docker pull --quiet "$1" >&2 && docker run --rm --network none "$1" python -c "$2"'
_NOTES = (
    "The link is a loopback interface with a limited speed and no latency; server and node share two cores.",
    "The share is sshfs without encryption, because this kernel has no NFS. The images on it are in the"
    " server's page cache; the node's is empty before a first image.",
    "Medians, and minima if there are several rounds.",
)
_SHARE = "From an image on a share to its first training step, without a GPU"
_REGISTRY = "From an image in a registry to its first training step, without a GPU"
_STATE = "the node has nothing of the first image, and has the first image when the second one starts"
_NOT_MEASURED = (
    "Pulls over 100 Mbit/s: by their size the gzip layers take at least 272 s, the zstd layers 193 s.",
    "A usual image of `pip install` in one layer: its gzip blob has about the same size (see published), and"
    " building it takes 7 minutes and 20 GB.",
    "Thin images: their sizes are in the benchmark thin.",
    "containerd 2.4 with `layer_content_caches`: no package was available.",
)


Phase = Callable[[Subject, Path, Say], AbstractContextManager[list[Contender]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkScene:
    """What server and node have."""

    folder: Path
    env: Mapping[str, str]  # of the client of the engine
    image: ImageOnDisk

    def pulled(self, name: str, bits_per_s: int, *, first: bool) -> Sample:
        """Pull the image *name*, and run the training step.

        :param first: delete all images of the engine before.
        """
        if first:
            subprocess.run(
                ["docker", "system", "prune", "--all", "--force"],
                env=self.env,
                capture_output=True,
                check=True,
            )
        set_rate(bits_per_s)
        return measure(["sh", "-c", _PULL, "sh", name, STEP], env=self.env, cwd=self.folder)[0]

    def mounted(self, files: list[Path], shared: Share, bits_per_s: int, *, first: bool) -> Sample:
        """Mount the image of *files* on the share, and run the training step.

        :param first: mount the share again before.
        """
        set_rate(bits_per_s)
        if first:
            shared.mount()
        asked = self.folder / "asked.json"
        places = [str(shared.target / path.relative_to(shared.source)) for path in files]
        argv = ["/opt/venv/bin/python", "-c", STEP]
        asked.write_text(json.dumps({"images": places, "argv": argv, "env": image_env(self.image)}))
        node = [sys.executable, "-m", "bench.start_node", str(asked)]
        return measure(node, env=os.environ, cwd=Path(__file__).parents[1])[0]


def start_links(subject: Subject, rounds: int, say: Say) -> Outcome:
    """Measure the time until the first training step of a mounted image is done, without a GPU."""
    if subject.generated:
        return unimportable("start-links", _SHARE)
    with tempfile.TemporaryDirectory(prefix="links-", dir=subject.scratch) as name:
        found = _measured(_of_share, subject, Path(name), rounds, say)
    figures = [
        Figure(what=f"start: {side}", unit="s", values=_walls(found[side]), target=aim)
        for kind in _MOUNTED
        for which, aim in zip(WHICH, _AIMS, strict=True)
        for side in [f"{kind}, {_AIMED}, {which}"]
    ]
    return Outcome(
        name="start-links",
        title=_SHARE,
        state=_STATE,
        sides=tuple(found.values()),
        series=rows(found.values()),
        figures=tuple(figures),
        notes=_NOTES,
    )


def start_pulls(subject: Subject, rounds: int, say: Say) -> Outcome:
    """As `start_links`, with images that Docker pulls."""
    if subject.generated:
        return unimportable("start-pulls", _REGISTRY)
    with tempfile.TemporaryDirectory(prefix="links-", dir=subject.scratch) as name:
        found = _measured(_of_engine, subject, Path(name), rounds, say)
    return Outcome(
        name="start-pulls",
        title=_REGISTRY,
        state=_STATE,
        sides=tuple(found.values()),
        series=rows(found.values()),
        notes=(_NOTES[0], _NOTES[2]),
        left_out=_NOT_MEASURED,
    )


def _measured(phase: Phase, subject: Subject, folder: Path, rounds: int, say: Say) -> dict[str, Side]:
    """:raises Failed: what *phase* needs is missing."""
    try:
        with phase(subject, folder, say) as contenders:
            return alternate(contenders, rounds, say)
    except NoEngine as error:
        raise Failed(str(error)) from error


def rows(sides: Iterable[Side]) -> tuple[tuple[str, ...], ...]:
    """Titles, then a row for each way to start: medians and minima; an empty cell was not measured."""
    walls = {tuple(side.name.rsplit(", ", 2)): _cell(side) for side in sides}
    columns = [(link, which) for link in LINKS for which in WHICH]
    columns = [column for column in columns if any(key[1:] == column for key in walls)]
    titles = ("seconds", *(f"{link}, {which.removesuffix(' image')}" for link, which in columns))
    kinds = dict.fromkeys(kind for kind, _, _ in walls)
    return (titles, *((kind, *(walls.get((kind, *column), "") for column in columns)) for kind in kinds))


def _cell(side: Side) -> str:
    least = f" ({min(_walls(side)):.1f})" if len(side.samples) > 1 else ""
    return f"{side.median('wall'):.1f}{least}"


def _walls(side: Side) -> tuple[float, ...]:
    return tuple(sample.wall for sample in side.samples)


@contextmanager
def _of_engine(subject: Subject, folder: Path, say: Say) -> Iterator[list[Contender]]:
    """Contenders that pull with Docker.

    :raises NoEngine: there is none, or not enough disk space for it.
    """
    if (free := shutil.disk_usage(folder).free) < _SPACE:
        raise NoEngine(f"{free / 1e9:.0f} GB are free on the disk, {_SPACE / 1e9:.0f} GB are needed")
    images: dict[str, ServedImage] = {}
    layer, blob = _code()
    for form in ("gzip", "zstd"):
        say(f"  building the image, {form}")
        image = _built(subject, folder, form)
        images[form] = _served(image)
        images[f"{form}-second"] = _with_layer(images[form], image, layer, blob)
    with ExitStack() as stack:
        stack.callback(remove, folder / "layout-zstd")
        stack.enter_context(own_network())
        env = reach(os.getpid(), "links")
        repository = stack.enter_context(registry(images))
        scene = LinkScene(folder=folder, env=env, image=image)

        def run(kind: str, which: str, bits_per_s: int) -> Sample:
            form, first = kind.partition(", ")[2], which == WHICH[0]
            name = f"{repository}:{form}{'' if first else '-second'}"
            return scene.pulled(name, bits_per_s, first=first)

        yield _contenders(_PULLED, run, [link for link in LINKS if LINKS[link] > _SLOW])


@contextmanager
def _of_share(subject: Subject, folder: Path, say: Say) -> Iterator[list[Contender]]:
    """Contenders that mount from a share."""
    say("  writing the images on the share")
    image, source = _built(subject, folder, "gzip"), folder / "share"
    source.mkdir()
    programs, files = sshfs(), _squashfs(subject, folder, source) | _erofs(image, folder, source)
    with own_network(), share(source, folder / "mounted", programs) as shared:
        scene = LinkScene(folder=folder, env=os.environ, image=image)

        def run(kind: str, which: str, bits_per_s: int) -> Sample:
            return scene.mounted(files[kind, which], shared, bits_per_s, first=which == WHICH[0])

        yield _contenders(_MOUNTED, run, list(LINKS))


def _contenders(
    kinds: Mapping[str, str], run: Callable[[str, str, int], Sample], links: list[str]
) -> list[Contender]:
    return [
        Contender(name=f"{kind}, {link}, {which}", what=what, run=partial(run, kind, which, LINKS[link]))
        for link in links
        for kind, what in kinds.items()
        for which in WHICH
    ]


def _built(subject: Subject, folder: Path, form: str) -> ImageOnDisk:
    """The image of the subject, in a layout for each *form*."""
    layout = folder / f"layout-{form}"
    if not layout.exists():
        cache = folder / "cache"
        if not cache.exists():
            subject.cache(str(cache.relative_to(subject.scratch)), wheels=True, bytecode=True)
        argv = [*subject.command(), "--layer-format", form, "--output", str(layout)]
        measure(argv, env={**subject.environ, "TORCHKILN_CACHE": str(cache)}, cwd=subject.scratch)
    return open_layout(layout).image(tag_of(subject.locked.resolution))


def _code() -> tuple[bytes, LayerBlob]:
    """A small layer, compressed, and its digests."""
    tar = archive([OverlayFile(path="opt/code/main.py", mode=0o644, data=b"print('second')\n")], mtime=0)
    data, blob = encode_bytes(tar)
    return data, LayerBlob(path=Path(), diff_id=blob.diff_id, size=len(data))


def _served(image: ImageOnDisk) -> ServedImage:
    folder = image.layers[0].path.parent
    manifest = (folder / image.manifest.removeprefix("sha256:")).read_bytes()
    config = json.loads(manifest)["config"]["digest"]
    blobs: dict[str, Path | bytes] = {layer.digest: layer.path for layer in image.layers}
    return ServedImage(manifest=manifest, blobs=blobs | {config: folder / config.removeprefix("sha256:")})


def _with_layer(below: ServedImage, image: ImageOnDisk, layer: bytes, blob: LayerBlob) -> ServedImage:
    """The image *below* with another layer."""
    manifest, config = json.loads(below.manifest), dict[str, Any](image.config)
    config["rootfs"] = {**config["rootfs"], "diff_ids": [*config["rootfs"]["diff_ids"], blob.diff_id]}
    config["history"] = [*config.get("history", ()), {"created_by": "code"}]
    text = json.dumps(config).encode()
    manifest["layers"].append({"mediaType": _LAYER, "digest": digest_of(layer), "size": len(layer)})
    manifest["config"] |= {"digest": digest_of(text), "size": len(text)}
    blobs = {**below.blobs, digest_of(layer): layer, digest_of(text): text}
    return ServedImage(manifest=json.dumps(manifest).encode(), blobs=blobs)


def _squashfs(subject: Subject, folder: Path, source: Path) -> dict[tuple[str, str], list[Path]]:
    """The image as a squashfs, and under another name, which shares nothing in the node's page cache."""
    files = [source / "first.sqsh", source / "second.sqsh"]
    argv = [*KILN, "export", "squashfs", str(files[0]), tag_of(subject.locked.resolution)]
    environ = {**subject.environ, "TORCHKILN_CACHE": str(folder / "cache")}
    measure([*argv, "--output", str(folder / "layout-gzip")], env=environ, cwd=subject.scratch)
    os.link(*files)
    kind = next(iter(_MOUNTED))
    return {(kind, which): [file] for which, file in zip(WHICH, files, strict=True)}


def _erofs(image: ImageOnDisk, folder: Path, source: Path) -> dict[tuple[str, str], list[Path]]:
    """The store with the layers of both images."""
    mkfs_in(folder / "bin")
    os.environ["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
    layer, blob = _code()
    (folder / "code").write_bytes(layer)
    layers = [*layers_of(image), LayerBlob(path=folder / "code", diff_id=blob.diff_id, size=len(layer))]
    for one in layers:
        convert(one, place_of(source, one.diff_id), find_mkfs())
    files = [place_of(source, one.diff_id) for one in layers]
    kind = list(_MOUNTED)[1]
    return {(kind, WHICH[0]): files[:-1], (kind, WHICH[1]): files}
