"""Makes the blob of a base or of tools from packages and effects, and computes these effects.

No script of a package runs, and no program of the host is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from torchkiln.base.archive import deb_path, folder_of, read_committed, read_files, record_files
from torchkiln.base.confined import confined
from torchkiln.base.effects import (
    LIMIT,
    Compile,
    Effects,
    Form,
    document,
    effects_of,
    from_bytes,
    of_document,
    to_bytes,
    with_effects,
)
from torchkiln.base.interpreter import LIBRARIES, Interpreter, extract_python_of, interpreter
from torchkiln.base.plain_tree import DebPath, Spool, Tree, UnpackRules, damage, plain_tree, tree_of
from torchkiln.base.recipe import recipe
from torchkiln.base.tree_tar import layer_tar, mmdebstrap_tar
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.model.apt import LockedApt
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.model.lock import DebFile, LockedBase, LockedTools
from torchkiln.model.platform import DEFAULT_PLATFORM
from torchkiln.model.progress import Reporting
from torchkiln.oci.compression import GZIP
from torchkiln.oci.encode import encode
from torchkiln.oci.tar_reader import IteratorFile, TarReader, pieces_of
from torchkiln.store.store import Store
from torchkiln.util.files import delete, remove_tree, write_atomic

if TYPE_CHECKING:
    from torchkiln.base.deb_archive import Debs

_COMPILERS = 2
_SOURCES = "etc/apt/sources.list"
APT_EFFECTS = "torchkiln.apt-effects.json.gz"  # in the folder of a project
#: What is made of packages: a base, tools, or the OS packages of a project.
Made = LockedBase | LockedTools | LockedApt
_OF_PYTHON = ("usr/bin/python3", "usr/lib/python3", LIBRARIES)


def remake(
    locked: Made,
    base: LockedBase,
    debs: Sequence[DebFile],
    effects: Effects,
    store: Store,
    *,
    path_of: DebPath,
) -> None:
    """Put the blob of *locked* into *store*, made of the packages *debs* and their *effects*.

    :param base: *locked* itself, or the base below it, whose blob is in *store*.
    :param path_of: the path of a package's file, which may be downloaded first.
    :raises BuildFailed: a file cannot be had, or the result is not *locked*.
    """
    with scratch_spool(store) as (folder, spool):
        with damage(f"the effects of {locked.digest[:19]} are damaged"):
            plain = plain_tree(debs, path_of, effects.rules, spool)
            own = base is locked and base.platform == DEFAULT_PLATFORM
            compiled = compiling(base, plain if own else None, store, folder)
            tree = with_effects(plain, effects, compiled)
        temporary = folder / "blob"
        made = encode(IteratorFile(tar_of(tree, effects)), temporary)
        if made != blob_of(locked):
            raise BuildFailed(
                f"the packages of {locked.os} do not give the locked blob: {mismatch(blob_of(locked), made)}"
            )
        store.adopt(temporary, store.blob(locked.digest))


def remade(
    locked: Made, base: LockedBase, store: Store, *, environ: Mapping[str, str], report: Reporting
) -> str | None:
    """Take the blob of *locked* from a vault, or make it by `remake`, if *store* knows its effects.

    :returns: None if *store* has the blob now, else the reason, which is empty for unknown effects.
    """
    from torchkiln.vault.places import vaults_of  # imported here: they load slowly
    from torchkiln.vault.sources import take

    if take(vaults_of(environ), locked.digest, locked.size, store.blob(locked.digest), store):
        return None
    files, effects = read_files(None, locked, store), read_effects(None, locked, store)
    if files is None or effects is None:
        return ""
    report.say(f"making {locked.digest[:19]} of {locked.os} from its {len(files.debs)} packages")
    debs = debs_of(base, files.dates, store, environ)
    try:
        remake(locked, base, files.debs, effects, store, path_of=debs.path)
    except BuildFailed as error:
        return debs.lacking(files.debs) or error.message
    return None


def debs_of(base: LockedBase, dates: Mapping[str, str], store: Store, environ: Mapping[str, str]) -> Debs:
    """The packages of *base*, and those that are installed on it.

    :param dates: of the suites that had them.
    :raises ConfigError: a mirror, or the name of a vault, is invalid.
    """
    from torchkiln.base.deb_archive import Debs, deb_sources  # imported here: it loads slowly

    return Debs(deb_sources(base.os, _sources_list(base, store), dates, environ), store, environ)


def learn(images: Path | None, locked: Made, store: Store) -> None:
    """Record in *store* the packages and effects of *locked* that *images*, the folder of its lock, has.

    :raises ConfigError: a file is malformed.
    """
    if not isinstance(locked, LockedApt) and (files := read_files(images, locked, store)):
        record_files(store, files)
    if effects := read_effects(images, locked, store):
        put_effects(locked, effects, store)


def describe(made: Made, base: LockedBase, debs: Sequence[DebFile], store: Store) -> Effects | None:
    """The effects of *made*, whose blob and packages are in *store*; None if these do not describe it."""
    wanted = recipe(made.os)
    if not all((store.root / deb_path(deb)).is_file() for deb in debs):
        return None
    with scratch_spool(store) as (folder, spool):
        finished = _tree_in(made, store, spool)
        rules = UnpackRules(
            epoch=wanted.epoch, dpkg_options=wanted.dpkg_options, merged=_links_at_top(base, store)
        )
        plain = plain_tree(debs, lambda deb: store.root / deb_path(deb), rules, spool)
        compiled = compiling(base, None, store, folder)
        form: Form = "mmdebstrap" if made is base else "layer"
        effects = effects_of(plain, finished, rules, form=form, blob=made.digest, compiled=compiled)
        again = encode(IteratorFile(tar_of(with_effects(plain, effects, compiled), effects)), folder / "blob")
    return effects if again.digest == made.digest else None


def record_effects(
    made: Made, base: LockedBase, debs: Sequence[DebFile], store: Store, say: Callable[[str], None]
) -> None:
    """Compute the effects of *made*, whose blob and packages are in *store*, and record them there."""
    if (effects := describe(made, base, debs, store)) is None:
        say(f"warning: {made.digest[:19]} cannot be made again from its packages: keep a copy of it")
    else:
        put_effects(made, effects, store)


def put_effects(made: Made, effects: Effects, store: Store) -> None:
    store.put_record(_records(made), _name(effects.blob), document(effects))


def read_effects(images: Path | None, found: Made, store: Store) -> Effects | None:
    """The effects of *found*, from the file beside its lock in *images*, or from *store*; None without them.

    :raises ConfigError: the committed file is malformed.
    """
    if images is not None and (committed := committed_effects(images, found)):
        return committed
    record = store.record(_records(found), _name(found.digest))
    try:
        return of_document(record, "a record of the cache") if record else None
    except ValueError:  # written by another version of torchkiln
        return None


def committed_effects(images: Path, found: Made) -> Effects | None:
    """The effects in the file beside the lock of *found*; None: there is none, or it is of another lock.

    :raises ConfigError: the file is malformed.
    """
    path = effects_path(images, found)
    if (data := read_committed(path, LIMIT)) is None:
        return None
    try:
        committed = from_bytes(data, str(path))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", hint=f"restore it: git checkout -- {path}") from error
    return committed if committed.blob == found.digest else None


def commit_effects(images: Path, found: Made, store: Store) -> None:
    """Write the effects of *found* beside its lock; if they are unknown, delete those of an earlier lock.

    :raises ConfigError: they are only in the committed file, which is malformed.
    """
    path = effects_path(images, found)
    effects = read_effects(None, found, store) or read_effects(images, found, store)
    if effects is None:
        delete(path)
    else:
        write_atomic(path, to_bytes(effects))


def effects_path(images: Path, found: Made) -> Path:
    """The path, below *images*, of the effects of *found*; *images* is the folder of a project's packages."""
    if isinstance(found, LockedApt):
        return images / APT_EFFECTS
    name = f"{found.name}-effects" if isinstance(found, LockedTools) else "effects"
    return images / folder_of(found) / f"{name}.json.gz"


def blob_of(locked: Made) -> Blob:
    return Blob(digest=locked.digest, diff_id=locked.diff_id, size=locked.size, unpacked=locked.unpacked)


def mismatch(expected: Blob, found: Blob) -> str:
    """The first difference, for a message; "" if there is none."""
    for name, value in asdict(expected).items():
        if (other := getattr(found, name)) != value:
            return f"expected {'' if name == 'digest' else f'{name} '}{value}, got {other}"
    return ""


def _records(found: Made) -> str:
    """The kind of record of its effects. A stranger's project chooses the digest in its lock."""
    return "apt-effects" if isinstance(found, LockedApt) else "base-effects"


def _name(digest: Digest) -> str:
    return digest.removeprefix("sha256:")


@contextmanager
def scratch_folder(store: Store, stem: str) -> Iterator[Path]:
    """A new folder of the cache, which is deleted at the end."""
    folder = store.temporary(stem)
    try:
        with store.writable():
            folder.mkdir(mode=0o700)
        yield folder
    finally:
        remove_tree(folder)


@contextmanager
def scratch_spool(store: Store) -> Iterator[tuple[Path, Spool]]:
    """A folder of the cache, and a spool in it; both are deleted at the end."""
    with (
        scratch_folder(store, "base") as folder,
        store.writable(),
        (folder / "spool").open("w+b", buffering=0) as file,
    ):
        yield folder, Spool(file)


def _sources_list(base: LockedBase, store: Store) -> str:
    """The sources.list of *base*, from its effects or its blob; "" if *store* has neither."""
    if effects := read_effects(None, base, store):
        return next((effect.text for effect in effects.changed if effect.path == _SOURCES), "")
    if store.has_blob(base.digest, base.size):
        with _opened(base, store) as stream:
            tar = TarReader(pieces_of(stream))
            return next((b"".join(tar.content()).decode() for entry in tar if entry.path == _SOURCES), "")
    return ""


def _links_at_top(base: LockedBase, store: Store) -> dict[str, str]:
    """The top-level folders of *base* that are links, with their targets."""
    with _opened(base, store) as stream:
        tar = TarReader(pieces_of(stream))
        return {entry.path: entry.target for entry in tar if entry.kind == "link" and "/" not in entry.path}


def _tree_in(artefact: Made, store: Store, spool: Spool) -> Tree:
    """The tree of the blob of *artefact*."""
    with _opened(artefact, store) as stream:
        return tree_of(stream, spool)


@contextmanager
def _opened(artefact: Made, store: Store) -> Iterator[BinaryIO]:
    """The tar of the blob of *artefact*."""
    blob = store.blob(artefact.digest)
    with damage(f"{blob} is damaged", "run: torchkiln cache verify --repair"), GZIP.open(blob) as stream:
        yield stream


def tar_of(tree: Tree, effects: Effects) -> Iterator[bytes]:
    return mmdebstrap_tar(tree, effects.epoch) if effects.form == "mmdebstrap" else layer_tar(tree)


def compiling(base: LockedBase, tree: Tree | None, store: Store, folder: Path) -> Compile:
    """A function that compiles with the Python of *base*: of its blob in *store*, or of its *tree*.

    If *base* is for another platform, *store* has a Python for it: see `interpreter`.
    """

    def compiled(sources: Mapping[str, bytes]) -> dict[str, bytes]:
        if not sources:
            return {}
        if tree is None:
            python = interpreter(base, store)
        else:
            python = Interpreter(root=folder / "python", version=base.python)
            part = {path: node for path, node in tree.items() if path.startswith(_OF_PYTHON)}
            stream = cast(BinaryIO, IteratorFile(layer_tar(part)))
            extract_python_of(stream, base.python, python.root)
        items = sorted((f"/{path}", data) for path, data in sources.items())
        shares = [dict(items[number::_COMPILERS]) for number in range(_COMPILERS)]
        start = confined(python)
        with ThreadPoolExecutor(_COMPILERS) as pool:
            jobs = [
                pool.submit(start.compiled, share.items(), folder / f"code{number}")
                for number, share in enumerate(shares)
            ]
            return {path[1:]: code for job in jobs for path, code in job.result().items()}

    return compiled
