"""How real engines handle zstd layers, and which format they choose from an index with gzip and zstd."""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cells import noise
from tests.engine import apart
from tests.engine.apart import SeparateEngine, new_engines, old_engines
from tests.engine.registry import RunningRegistry
from tests.engine.root import NoEngine, ensure, home
from tests.faultproxy import FaultProxy
from tests.needs import give_up, nightly
from tests.pushing import push_to
from tests.roots import LayerBlob, entry, layer, minimal_layout, tiny_layers
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.oci.compression import GZIP, ZSTD
from torchkiln.oci.image import (
    MANIFEST_TYPE,
    canonical_json,
    descriptor,
    digest_of,
)
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.oci.platform_index import INDEX_TYPE
from torchkiln.oci.zstd import compress
from torchkiln.util.places import ROOT

_PREFERRED = "io.github.containers.compression.zstd"  # for containers/image: only "true" counts


def index_of(manifests: Sequence[bytes]) -> bytes:
    """The index of *manifests*: those without zstd first, otherwise in their order.

    :raises ValueError: they do not share a config, so they are different images.
    """
    parsed = [(json.loads(manifest), manifest) for manifest in manifests]
    if len({manifest["config"]["digest"] for manifest, _ in parsed}) != 1:
        raise ValueError("an index holds one image in several forms, and these have not one config")
    entries = [_entry(document, data) for document, data in parsed]
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": INDEX_TYPE,
            "manifests": sorted(entries, key=lambda entry: "annotations" in entry),
        }
    )


def _entry(manifest: dict[str, Any], data: bytes) -> dict[str, Any]:
    entry = {**descriptor(MANIFEST_TYPE, digest_of(data), len(data)), "platform": LINUX_AMD64.oci}
    if any(layer["mediaType"] == ZSTD.media_type for layer in manifest["layers"]):
        entry["annotations"] = {_PREFERRED: "true"}
    return entry


# `make proof` tests two engines, in a root file system that other tests use, too. NIGHTLY=yes tests all,
# with two more root file systems.
pytestmark = [pytest.mark.network, pytest.mark.proof]

_NAME = "team/both"
_FAR = 50 << 20  # bytes
_MESSAGES = f"from the upper layer\n{_FAR + 4_000_000}\n"
_CONFIG: dict[str, object] = {
    "Cmd": ["/bin/sh", "-c", "cat /etc/upper; wc -c < /opt/far"],
    "Env": ["PATH=/bin"],
}


_GZIP, _ZSTD, _BOTH, _NONE = (frozenset(kinds.split()) for kinds in ("gzip", "zstd", "gzip zstd", ""))
_TAGS = ("zstd", "gzip-first", "zstd-first")
_FIRST = (_ZSTD, _GZIP, _ZSTD)
_Bring = Callable[[Path], AbstractContextManager[SeparateEngine]]


def _own() -> Path:
    return ensure(home())


def _docker(root: Callable[[], Path], *, containerd: bool) -> _Bring:
    return lambda place: apart.dockerd(root(), place, containerd_snapshotter=containerd)


def _ctr(root: Callable[[], Path]) -> _Bring:
    return lambda place: apart.containerd(root(), place)


def _podman(root: Callable[[], Path]) -> _Bring:
    return lambda place: apart.podman(root(), place)


# For each engine, the formats that it chooses, one for each of _TAGS.
ENGINES: Mapping[str, tuple[_Bring, tuple[frozenset[str], ...]]] = {
    # This engine has no zstd: it reads a zstd layer as a tar.
    "Docker 20.10": (_docker(old_engines, containerd=False), (_NONE, _GZIP, _NONE)),
    "Docker 26.1": (_docker(_own, containerd=False), _FIRST),
    "Docker 26.1, containerd's store": (_docker(_own, containerd=True), _FIRST),
    "Docker of Debian testing": (_docker(new_engines, containerd=False), _FIRST),
    "Docker of Debian testing, containerd's store": (_docker(new_engines, containerd=True), _FIRST),
    "Podman 4.3": (_podman(old_engines), _FIRST),
    # This engine prefers the manifest with the annotation _PREFERRED.
    "Podman of Debian testing": (_podman(new_engines), (_ZSTD, _ZSTD, _ZSTD)),
    # These engines download all manifests for their platform, and unpack one of them.
    "ctr 1.6": (_ctr(old_engines), (_ZSTD, _BOTH, _BOTH)),
    "ctr 1.7": (_ctr(_own), (_ZSTD, _BOTH, _BOTH)),
}

_DAILY = ("Docker 26.1", "Docker 26.1, containerd's store")


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One image in a registry, under the tags zstd, gzip-first and zstd-first."""

    registry: RunningRegistry
    forms: dict[str, frozenset[str]]  # format → digests of the layers


@pytest.fixture(scope="module")
def offer(tmp_path_factory: pytest.TempPathFactory, registry: RunningRegistry) -> Offer:
    folder = tmp_path_factory.mktemp("both")
    piece = noise("far", 2_000_000)
    layers = [*tiny_layers(folder), layer(folder, entry("opt/far", piece + bytes(_FAR) + piece))]
    pushed: dict[str, ImageOnDisk] = {}
    for kind, blobs in {"gzip": layers, "zstd": [_by_zstd(blob) for blob in layers]}.items():
        layout = minimal_layout(folder / kind, blobs, _CONFIG, kind, kind)
        pushed[kind] = open_layout(layout).image(kind)
        push_to(registry.host, _NAME, pushed[kind], tags=(kind,))
    index = index_of([pushed["zstd"].manifest_path.read_bytes(), pushed["gzip"].manifest_path.read_bytes()])
    _put(registry, "gzip-first", index)
    turned = json.loads(index)
    turned["manifests"].reverse()
    _put(registry, "zstd-first", json.dumps(turned).encode())
    forms = {kind: frozenset(layer.digest for layer in image.layers) for kind, image in pushed.items()}
    return Offer(registry=registry, forms=forms)


def _by_zstd(blob: LayerBlob) -> LayerBlob:
    with GZIP.open(blob.path) as stream:
        tar = stream.read()
    out = io.BytesIO()
    written = compress(io.BytesIO(tar), out, unpacked=len(tar))
    path = blob.path.with_name(written.digest.removeprefix("sha256:"))
    path.write_bytes(out.getvalue())
    return LayerBlob(path=path, diff_id=written.diff_id)


def _put(registry: RunningRegistry, tag: str, index: bytes) -> None:
    request = urllib.request.Request(
        f"http://{registry.host}/v2/{_NAME}/manifests/{tag}",
        data=index,
        method="PUT",
        headers={"Content-Type": INDEX_TYPE},
    )
    urllib.request.urlopen(request, timeout=300).close()


def _formats_pulled(bring: _Bring, offer: Offer, tag: str, place: Path) -> frozenset[str]:
    """The formats that an engine without images downloads for *tag*; empty if it cannot use the image."""
    with bring(place) as engine, FaultProxy(offer.registry.host) as proxy:
        name = f"{proxy.host}/{_NAME}:{tag}"
        pulled = engine.pull(name)
        if pulled.returncode:
            assert "invalid tar header" in pulled.stdout + pulled.stderr
            return _NONE
        ran = engine.run(name)
        assert (ran.returncode, ran.stdout) == (0, _MESSAGES), ran.stderr
        fetched = {request.path.rpartition("/")[2] for request in proxy.requests if request.method == "GET"}
        return frozenset(kind for kind, layers in offer.forms.items() if layers <= fetched)


def _all_pulled(bring: _Bring, offer: Offer, folder: Path) -> tuple[frozenset[str], ...]:
    try:
        return tuple(_formats_pulled(bring, offer, tag, folder / tag) for tag in _TAGS)
    except NoEngine as error:
        give_up(str(error))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in _DAILY else [nightly]) for name in ENGINES]
)
def test_format_chosen_by_an_engine(name: str, offer: Offer, tmp_path: Path) -> None:
    """A container works with either format."""
    bring, takes = ENGINES[name]

    assert _all_pulled(bring, offer, tmp_path) == takes


@nightly
def test_ctr_of_debian_testing_reads_both(offer: Offer, tmp_path: Path) -> None:
    """ctr probably takes the first manifest; the container runs with both."""
    alone, *of_index = _all_pulled(_ctr(new_engines), offer, tmp_path)

    assert alone == _ZSTD
    assert all(of_index)


def test_the_page_has_this_table() -> None:
    page = (ROOT / "docs" / "layer-formats.md").read_text()
    rows = [
        " | ".join((f"| {name}", *(" and ".join(sorted(taken)) or "fails" for taken in takes))) + " |"
        for name, (_, takes) in ENGINES.items()
    ]

    assert [row for row in rows if row not in page] == []
