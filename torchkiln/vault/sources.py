"""Gets locked files from vaults, before an index or a server is asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from torchkiln.errors import BuildFailed, RegistryError, VerificationFailed
from torchkiln.index.verified import LockedFile
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedArchive, LockedWheel
from torchkiln.model.progress import ArchiveSource, Fetcher, Transfer
from torchkiln.store.store import Store
from torchkiln.vault.places import Vault
from torchkiln.wheel.source import Cancelled


def digest_of_file(file: LockedFile) -> Digest:
    """The digest under which a vault has *file*."""
    return Digest(f"sha256:{file.sha256}")


def read_from(
    vaults: Collection[Vault], digest: Digest, size: int, path: Path, on_progress: Callable[[int], None]
) -> tuple[str, ...] | None:
    """Copy the file with *digest* to *path* from the first vault that has it; a lost registry is skipped.

    :returns: None, or each vault with the reason why it did not give the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return _reasons(vaults, lambda vault: vault.read(digest, size, path, on_progress))


def _reasons(vaults: Collection[Vault], gives: Callable[[Vault], bool]) -> tuple[str, ...] | None:
    """As `read_from`, for any request *gives*."""
    reasons = []
    for vault in vaults:
        try:
            if gives(vault):
                return None
            reasons.append(f"{vault.name}: not there")
        except (VerificationFailed, RegistryError) as error:
            reasons.append(f"{vault.name}: {error.message}")
    return tuple(reasons)


def take(vaults: Collection[Vault], digest: Digest, size: int, target: Path, store: Store) -> bool:
    """Copy the file with *digest* from a vault to *target* in *store*; False if no vault has it."""
    temporary = store.temporary("vault")
    if read_from(vaults, digest, size, temporary, lambda _: None) is not None:
        return False
    store.adopt(temporary, target)
    return True


def _lacking(vaults: Collection[Vault], file: LockedFile) -> tuple[str, ...] | None:
    """As `read_from` for *file*, which is not copied."""
    return _reasons(vaults, lambda vault: vault.has(digest_of_file(file), file.size))


@contextmanager
def _naming(reasons: Collection[str]) -> Iterator[None]:
    """Add the reasons of the vaults to an error of the index."""
    try:
        yield
    except BuildFailed as error:
        error.message = "\n".join((error.message, *(f"  {reason}" for reason in reasons)))
        raise


def _stopping(transfer: Transfer) -> Callable[[int], None]:
    """Reports progress, and ends the copy of a file by `Cancelled` once *transfer* is cancelled."""

    def report(count: int) -> None:
        transfer.advanced(count)
        if transfer.cancelled():
            raise Cancelled

    return report


class VaultFetcher:
    """Gets wheels from *vaults*, and those that they lack from *index*."""

    def __init__(self, vaults: Collection[Vault], index: Fetcher) -> None:
        self._vaults, self._index = vaults, index

    def size(self, wheel: LockedWheel) -> int:
        return self._index.size(wheel)

    def tail(self, wheel: LockedWheel, count: int) -> bytes | None:
        """As `Fetcher.tail`: a vault gives no ranges."""
        if (reasons := _lacking(self._vaults, wheel)) is None:
            return None
        with _naming(reasons):
            return self._index.tail(wheel, count)

    def fetch(self, wheel: LockedWheel, path: Path, transfer: Transfer) -> None:
        report = _stopping(transfer)
        try:
            reasons = read_from(self._vaults, digest_of_file(wheel), wheel.size, path, report)
        except Cancelled:
            return
        if reasons is None:
            return
        with _naming(reasons):
            self._index.fetch(wheel, path, transfer)


class VaultArchives:
    """Gets NVIDIA's archives from *vaults*, and those that they lack from *server*."""

    def __init__(self, vaults: Collection[Vault], server: ArchiveSource) -> None:
        self._vaults, self._server = vaults, server

    def _others(self, archives: Collection[LockedArchive]) -> list[LockedArchive]:
        return [archive for archive in archives if _lacking(self._vaults, archive) is not None]

    def require(self, archives: Collection[LockedArchive]) -> None:
        self._server.require(self._others(archives))

    def demand_reachable(self, archives: Collection[LockedArchive]) -> None:
        self._server.demand_reachable(self._others(archives))

    def archive(self, archive: LockedArchive, part: Path, transfer: Transfer) -> Path | None:
        report = _stopping(transfer)
        try:
            if read_from(self._vaults, digest_of_file(archive), archive.size, part, report) is None:
                return part
        except Cancelled:
            return None
        return self._server.archive(archive, part, transfer)
