"""One image of a layout → a layout that holds it alone, for programs that take the first they find."""

from __future__ import annotations

from pathlib import Path

from torchkiln.oci.image import MANIFEST_TYPE, PLATFORM, canonical_json, descriptor
from torchkiln.oci.layout import INDEX_TYPE, VERSION, ImageOnDisk


def alone(image: ImageOnDisk, folder: Path) -> None:
    """Make *folder* a layout of *image*, without a name. The blobs are links to those of its own layout.

    Symbolic ones: they cost nothing on whatever file system, and need no right to the blobs but to read them.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for path in {image.manifest_path, image.config_path, *(layer.path for layer in image.layers)}:
        (blobs / path.name).symlink_to(path.resolve())
    entry = descriptor(MANIFEST_TYPE, image.manifest, image.manifest_path.stat().st_size)
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [{**entry, "platform": PLATFORM}],
    }
    (folder / "index.json").write_bytes(canonical_json(index))
    (folder / "oci-layout").write_bytes(canonical_json(VERSION))
