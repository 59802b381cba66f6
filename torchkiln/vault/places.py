"""The two kinds of vaults: an OCI layout in a folder, and a repository of a registry.

A file is a blob with the digest that the lock has. Each lock is an artifact under a tag, whose manifest names
its files, so that no registry collects them; `oras` and `skopeo` can read it.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Protocol

from torchkiln.errors import BuildFailed, ConfigError, RegistryError, VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.oci import layout
from torchkiln.oci.documents import LIMIT
from torchkiln.oci.image import canonical_json, digest_of
from torchkiln.oci.platform_index import index_document, name_in
from torchkiln.registry.delivery import Blob, Delivery, document
from torchkiln.registry.push import delete_tag, put
from torchkiln.registry.reading import RepositoryReader
from torchkiln.registry.reference import Repository, parse_repository
from torchkiln.registry.session import open_registry
from torchkiln.util.files import folder_at, named, replacing, write_atomic
from torchkiln.util.strict_json import open_plain, read_file
from torchkiln.vault import VARIABLE

SCHEME = "oci://"
_PIECE = 1 << 20


class Vault(Protocol):
    """A place with files by digest; thread-safe."""

    @property
    def name(self) -> str:
        """The name of the place, as the user wrote it."""

    def has(self, digest: Digest, size: int) -> bool:
        """Whether it has the file; the bytes are not read.

        :raises RegistryError: it cannot be reached.
        """

    def read(self, digest: Digest, size: int, path: Path, on_progress: Callable[[int], None]) -> bool:
        """Copy the file to *path*; False: it does not have it. The digest is checked.

        :raises VerificationFailed: it has other bytes; nothing stays at *path*.
        :raises RegistryError: it cannot be reached.
        """

    def prepare(self) -> None:
        """Make sure that files can be added; a folder is created.

        :raises ConfigError: it is not a vault, and not empty, or cannot be created.
        :raises RegistryError: the registry cannot be reached.
        """

    def put(self, digest: Digest, size: int, path: Path) -> None:
        """Add the file at *path*, unless it is there.

        :raises VerificationFailed: the file has another digest.
        :raises BuildFailed: the disk is full.
        """

    def tag(self, tag: str, manifest: bytes, config: bytes) -> None:
        """Add *manifest* with its *config* under *tag*, after its files."""

    def tags(self) -> dict[str, bytes]:
        """The manifests by tag; empty if missing or damaged."""

    def untag(self, tag: str) -> None:
        """Remove *tag*, and with it the files that no other tag needs.

        :raises RegistryError: the registry does not support it.
        """


class FolderVault:
    def __init__(self, folder: Path) -> None:
        self.folder, self.name = named(folder), str(folder)

    def _blob(self, digest: Digest) -> Path:
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def has(self, digest: Digest, size: int) -> bool:
        try:
            status = self._blob(digest).lstat()
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == size

    def read(self, digest: Digest, size: int, path: Path, on_progress: Callable[[int], None]) -> bool:
        try:
            source = open_plain(self._blob(digest), follow=False)
        except OSError:
            return False
        with source:
            _copy(source.read, digest, size, path, on_progress, f"{self.name}: {digest[:19]}")
        return True

    def prepare(self) -> None:
        try:
            with folder_at(self.folder, make=0o777) as folder:
                there = {path.name for path in folder.iterdir()}
        except OSError as error:
            raise ConfigError(f"vault {self.name}: {error.strerror}", hint="choose another folder") from error
        if there - {"lost+found"} and not there & {"index.json", "blobs"}:
            raise ConfigError(
                f"vault {self.name}: directory is not empty and not a vault", hint="choose an empty folder"
            )

    def put(self, digest: Digest, size: int, path: Path) -> None:
        if self.has(digest, size):
            return
        target = self._blob(digest)
        try:
            with path.open("rb") as source, replacing(target) as part:
                _copy(source.read, digest, size, part, lambda _: None, str(path))
        except OSError as error:
            raise BuildFailed(
                f"the vault {self.name} cannot be written: {error.strerror or error}",
                hint="free disk space, or choose another folder; what is there stays valid",
            ) from error

    def tag(self, tag: str, manifest: bytes, config: bytes) -> None:
        layout.write_documents(self.folder, tag, manifest, config)

    def tags(self) -> dict[str, bytes]:
        if not (self.folder / "index.json").exists():
            raise ConfigError(f"{self.name}: not a vault", hint=f"run: torchkiln vault keep {self.name} TAG")
        found = layout.open_layout(self.folder)
        documents = {}
        for tag, digest in found.refs().items():
            documents[tag] = b""
            with suppress(OSError):
                data = read_file(found.blob(digest), LIMIT, follow=False)
                documents[tag] = data if digest_of(data) == digest else b""
        return documents

    def untag(self, tag: str) -> None:
        with layout.locked(self.folder):
            entries = layout.open_layout(self.folder).written_entries()
            left = [entry for entry in entries if name_in(entry) != tag]
            write_atomic(self.folder / "index.json", canonical_json(index_document(left)))
        with suppress(VerificationFailed):  # an unreadable manifest may need any file: then all are kept
            layout.prune(self.folder)


class RegistryVault:
    def __init__(self, repository: Repository, environ: Mapping[str, str]) -> None:
        self._repository, self._environ = repository, environ
        self.name = f"{SCHEME}{repository}"
        self._lost: RegistryError | None = None

    @cached_property
    def _delivery(self) -> Delivery:
        return Delivery(open_registry(self._repository, self._environ), self._repository)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        if self._lost:  # each request to a registry that does not answer takes seconds
            raise self._lost
        try:
            yield
        except RegistryError as error:
            self._lost = error
            raise

    def has(self, digest: Digest, size: int) -> bool:
        with self._asked():
            return self._delivery.is_there(Blob(digest=digest, source=b"", size=size))

    def read(self, digest: Digest, size: int, path: Path, on_progress: Callable[[int], None]) -> bool:
        if not self.has(digest, size):
            return False
        with self._asked():
            RepositoryReader(self._delivery.registry, self._repository).fetch(digest, size, path, on_progress)
        return True

    def prepare(self) -> None:
        self._delivery.registry.check()

    def put(self, digest: Digest, size: int, path: Path) -> None:
        self._delivery.deliver(Blob(digest=digest, source=path, size=size), (), lambda _: None)

    def tag(self, tag: str, manifest: bytes, config: bytes) -> None:
        self._delivery.deliver(document(config), (), lambda _: None)
        put(self._delivery.registry, self._repository, manifest, tag)

    def tags(self) -> dict[str, bytes]:
        reader = RepositoryReader(self._delivery.registry, self._repository)
        return {tag: found.data for tag in reader.tags() if (found := reader.manifest(tag))}

    def untag(self, tag: str) -> None:
        registry = self._delivery.registry
        if delete_tag(registry, self._repository, tag):
            return
        digest = RepositoryReader(registry, self._repository).digest(tag)  # some only delete by digest
        if digest is not None and not delete_tag(registry, self._repository, digest):
            raise RegistryError(
                f"{self.name}: the registry does not delete tags", hint="enable deletion in the registry"
            )


def vault_at(where: str, environ: Mapping[str, str]) -> Vault:
    """The vault at *where*, a folder or oci://REGISTRY/REPOSITORY.

    :raises ConfigError: *where* is neither.
    """
    if where.startswith(SCHEME):
        return RegistryVault(parse_repository(where.removeprefix(SCHEME)), environ)
    host, slash, _ = where.partition("/")
    is_like_a_registry = slash and not host.startswith(".") and (":" in host or "." in host)
    if "://" in where or not where or (is_like_a_registry and not Path(where).exists()):
        raise ConfigError(
            f"vault {where!r}: neither a folder nor an address",
            hint=f"write oci://HOST/REPOSITORY for a registry, ./{where} for a folder",
        )
    return FolderVault(Path(where))


def vaults_of(environ: Mapping[str, str]) -> tuple[Vault, ...]:
    """The vaults that TORCHKILN_VAULT names, separated by spaces, in the order in which they are asked.

    :raises ConfigError: a name is invalid, or a folder does not exist.
    """
    found = tuple(vault_at(where, environ) for where in environ.get(VARIABLE, "").split())
    for vault in found:
        if isinstance(vault, FolderVault) and not vault.folder.is_dir():
            raise ConfigError(f"vault {vault.name}: no such directory", hint=f"correct --vault or {VARIABLE}")
    return found


def _copy(
    read: Callable[[int], bytes],
    digest: Digest,
    size: int,
    path: Path,
    on_progress: Callable[[int], None],
    what: str,
) -> None:
    """Copy the bytes of *read* to *path*; other bytes than *digest* leave no file."""
    hashed, done = hashlib.sha256(), 0
    with path.open("wb") as out:
        while piece := read(_PIECE):
            done += len(piece)
            if done > size:
                break
            hashed.update(piece)
            out.write(piece)
            on_progress(len(piece))
    if done != size or f"sha256:{hashed.hexdigest()}" != digest:
        path.unlink()
        raise VerificationFailed(
            f"{what}: checksum mismatch: expected {digest}, {size} bytes",
            hint="the file is damaged: run `torchkiln vault check`, and keep the lock again",
        )
