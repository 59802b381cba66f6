"""Small layouts for the tests of the oracle, and its faults as a user reads them."""

from collections.abc import Callable
from pathlib import Path

from tests.oci_samples import BlobFolder, Member, files, members_of, plan, tar_of
from torchkiln.oci.layout import Layout, open_layout, write_image
from torchkiln.oci.validate.validate import validate

BASE = files(etc__motd=b"hello\n", opt__venv__bin__python=b"#!")
OWN = (Member(name="opt/venv/x.py", data=b"x = 1\n"),)


def build(folder: Path, *tars: bytes, pack: Callable[[bytes], bytes] = members_of, tag: str = "a") -> Layout:
    """A layout of the base and *tars* on it."""
    store = BlobFolder(folder / "store")
    layers = [store.layer("base", tar_of(BASE))]
    layers += [store.layer(f"layer {number}", tar, pack=pack) for number, tar in enumerate(tars)]
    write_image(folder / "layout", plan(tag), layers, store.path)
    return open_layout(folder / "layout")


def words(layout: Layout, ref: str | None = None) -> list[str]:
    """The faults as a user reads them."""
    return [str(fault) for fault in validate(layout.path, ref)]
