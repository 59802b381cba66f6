"""`python -m bench.fetch METHOD N IMAGES TAG FOLDER`: download the wheels of a lock and do nothing else.

METHOD is `curl` (N connections; nothing is hashed), `curl-ranges` (with a range request for each file) or
`own` (torchkiln's downloader, N threads). All methods look up the URLs with torchkiln's code and an empty
cache. Prints the number of downloaded bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torchkiln.engine import wheel_layers
from torchkiln.index.download import Downloads, open_downloads
from torchkiln.locks.lock import load_locked
from torchkiln.model.lock import LockedCell
from torchkiln.model.progress import Transfer
from torchkiln.store.store import Store


def streams() -> int:
    """The maximum number of concurrent connections of torchkiln's build."""
    return wheel_layers._STREAMS + wheel_layers._SMALL_STREAMS


def curl(downloads: Downloads, locked: LockedCell, folder: Path, connections: int, *options: str) -> None:
    """Download all files with one curl, the largest first."""
    places = downloads.pages.find_all(locked.wheels)
    config = "\n".join(
        f'url = "{places[wheel].url}"\noutput = "{folder / wheel.filename}"'
        for wheel in sorted(locked.wheels, key=lambda wheel: -wheel.size)
    )
    argv = ["curl", "--silent", "--show-error", "--fail", "--location", "--parallel", "--parallel-immediate"]
    argv += ["--parallel-max", str(connections), *options, "--config", "-"]
    subprocess.run(argv, input=config.encode(), check=True)


def curl_ranges(downloads: Downloads, locked: LockedCell, folder: Path, connections: int) -> None:
    """As `curl`, with range requests."""
    curl(downloads, locked, folder, connections, "--range", "0-")


def own(downloads: Downloads, locked: LockedCell, folder: Path, connections: int) -> None:
    """Download with torchkiln's downloader, the largest first."""
    with ThreadPoolExecutor(connections) as pool:
        fetched = [
            pool.submit(downloads.fetch, wheel, folder / wheel.filename, Transfer())
            for wheel in sorted(locked.wheels, key=lambda wheel: -wheel.size)
        ]
        for future in fetched:
            future.result()


def main(method: str, connections: int, images: Path, tag: str, folder: Path) -> None:
    """Download into *folder*."""
    locked = load_locked(images, tag)
    downloads = open_downloads(os.environ, Store(folder / "records"))
    {"curl": curl, "curl-ranges": curl_ranges, "own": own}[method](downloads, locked, folder, connections)
    sizes = {wheel.filename: (folder / wheel.filename).stat().st_size for wheel in locked.wheels}
    if wrong := [wheel.filename for wheel in locked.wheels if sizes[wheel.filename] != wheel.size]:
        sys.exit(f"size mismatch: {', '.join(wrong)}")
    print(sum(sizes.values()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
