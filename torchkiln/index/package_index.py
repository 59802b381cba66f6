"""Wanted → LockedWheels: uv resolves, the pages tell the files, one a package is chosen and measured."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchkiln.errors import BadWheel, BuildFailed, Unresolvable
from torchkiln.index.choose import choose, tags_of
from torchkiln.index.download import Downloads
from torchkiln.index.metadata import Metadata
from torchkiln.index.pages import Pages
from torchkiln.index.remote_wheel import metadata_of
from torchkiln.index.session import WORKERS
from torchkiln.index.settings import index_settings
from torchkiln.index.uv import Pin, compile_pins
from torchkiln.model.cell import OwnFile, Source
from torchkiln.model.index import FileAt, IndexRequest, KnownWheel, variable_of
from torchkiln.model.lock import LockedWheel
from torchkiln.store.store import Store


class PackageIndex:
    """The configured indexes, for a lock and for a build."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self.yanked: dict[tuple[str, str], str] = {}  # (project, version) of what was locked → the reason

    def wheels(self, wanted: IndexRequest) -> tuple[LockedWheel, ...]:
        """The wheels that *wanted* comes to, by name, each with its size; those that were given, without.

        :raises Unresolvable: no set of packages fits, or an index is not configured or reached.
        """
        pins, metadata = self._pins(wanted), Metadata(self.pages)
        tags = tags_of(wanted.python, wanted.glibc)

        def locked(pin: Pin) -> LockedWheel:
            files = self.pages.files(pin.name, pin.index, pin.hashes)
            file = self.pages.measure(choose(f"{pin.name} {pin.version}", files, pin.hashes, tags))
            if not file.size:
                raise BuildFailed(f"{file.filename}: empty on the index")
            metadata.demand_same(file)
            if file.yanked is not None:
                self.yanked[pin.name, pin.version] = file.yanked
            return LockedWheel(
                name=pin.name,
                version=pin.version,
                filename=file.filename,
                sha256=file.sha256,
                size=file.size,
                index=pin.index,
            )

        with ThreadPoolExecutor(WORKERS) as pool:
            return (*pool.map(locked, pins), *(_unseen(wheel) for wheel in wanted.known))

    def own(self, file: OwnFile) -> LockedWheel:
        """*file*, which no index has: fetched, so that size and hash are its own.

        :raises Unresolvable: nobody says where it lies, or it is not there, or another file is.
        """
        hint = f"set {variable_of(file.name)} to a place that has it, with sha256 {file.sha256}"
        try:
            at = self.pages.measure(self.pages.find(file.filename, file.sha256, file.name, Source.OWN))
            version, filename = file.version, file.filename
            if filename.endswith(".whl"):
                version, filename = _own_name(file, metadata_of(self.pages.session, at).version)
            wheel = LockedWheel(
                name=file.name,
                version=version,
                filename=filename,
                sha256=file.sha256,
                size=at.size or 0,
                index=Source.OWN,
                at=file.filename if file.filename != filename else "",
            )
            Downloads(self.pages).fetch_wheel(wheel, self.pages.store)
        except BadWheel as error:
            raise Unresolvable(f"what lies there is another file: {error.message}", hint=hint) from error
        except BuildFailed as error:
            raise Unresolvable(f"{file.filename} cannot be had: {error.message}", hint=hint) from error
        return wheel

    def requires(self, wheel: LockedWheel) -> tuple[str, ...]:
        """What METADATA of a wheel from `own` asks for, markers included."""
        path = self.pages.store.wheel(wheel)
        at = FileAt(filename=wheel.filename, url=path.as_uri(), size=wheel.size, sha256=wheel.sha256)
        return metadata_of(self.pages.session, at).requires

    def _pins(self, wanted: IndexRequest) -> tuple[Pin, ...]:
        """uv's answer, with what torch brings along from PyTorch's index bound to it as well."""
        while True:
            pins = compile_pins(wanted, self.pages)
            # uv binds to an index only what is asked for by name; triton comes along with torch.
            asked = {canonicalize_name(Requirement(text).name) for text in wanted.requirements}
            implied = tuple(pin.name for pin in pins if pin.name in wanted.bound and pin.name not in asked)
            if not implied:
                return pins
            wanted = replace(wanted, requirements=(*wanted.requirements, *implied))


def _unseen(wheel: KnownWheel) -> LockedWheel:
    return LockedWheel(
        name=wheel.name,
        version=wheel.version,
        filename=wheel.filename,
        sha256=wheel.sha256,
        size=0,
        index=Source.PYTORCH,
    )


def _own_name(file: OwnFile, version: str) -> tuple[str, str]:
    """Version and name of a wheel as its metadata have them.

    Projects put the torch that a wheel is for behind the version of its file, 2.8.3+cu12torch2.7, and leave
    the inside as it was: under that name pip refuses it.
    """
    project, told, rest = file.filename.split("-", 2)
    if "+" in told and told.partition("+")[0] == version:
        return version, f"{project}-{version}-{rest}"
    return file.version, file.filename


def open_index(environ: Mapping[str, str], store: Store) -> PackageIndex:
    """The indexes that the user's settings name."""
    return PackageIndex(Pages(index_settings(environ), store))
