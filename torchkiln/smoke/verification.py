"""Compares an image's unpacked files with its layers, and the image with its lock, before its checks run.

A layer whose diff_id is in the lock has the right files. In other layers, the RECORD of a locked distribution
must list each file that Python can import or run at start-up, with its hash.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import io
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torchkiln.errors import printable
from torchkiln.locks.file import lock_digest
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ArtefactLayer, ImagePlan, MadeLayer
from torchkiln.model.recipe import PREFIX
from torchkiln.model.report import Root
from torchkiln.oci.layer_index import TreeItem
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.plan.plan import plan
from torchkiln.runtimes.image_root import layers_of, verified
from torchkiln.runtimes.layer_indexes import kept_tree, tree_of
from torchkiln.runtimes.runtime import RuntimeListener
from torchkiln.runtimes.unpacked import image_env
from torchkiln.store.store import Store

_NAMED = 10  # maximum paths in a message
_VALUE = 120  # maximum characters of a variable in a message
_VENV = PREFIX.lstrip("/")
# Folders with modules: the standard library, site-packages, and a user's site-packages.
_MODULES = re.compile(rf"^{_VENV}/|(^|/)lib(64)?/python3(\.\d+)?/|(^|/)(site|dist)-packages/")
_PROGRAMS = re.compile(r"^(usr/(local/)?)?(s?bin|lib(32|64|x32)?)/")
_LOADER = re.compile(r"^etc/ld\.so\.")  # preloaded libraries, and folders of libraries
_UNHASHED = re.compile(r"\.pyc$|\.dist-info/RECORD$")
# Only at the top of site-packages: some distributions contain copies of others, with METADATA and RECORD.
_METADATA = re.compile(r"(^|/)(site|dist)-packages/[^/]+\.dist-info/METADATA$")
_RECORD = re.compile(r"(^|/)(site|dist)-packages/[^/]+\.dist-info/RECORD$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    faults: tuple[str, ...]  # how the image differs from its lock
    # when the unpacked files were compared with the layers, in UTC; None: an engine unpacks them
    when: str | None
    root: Root | None  # how they were provided


def verification(
    image: ImageOnDisk, locked: LockedCell | None, store: Store, listener: RuntimeListener, *, in_engine: bool
) -> Verification:
    """Verify *image*; an unpacked copy that differs from its layers is replaced first.

    :param locked: None: the image is a project's, and is not compared with a lock.
    :param in_engine: an engine starts the image by the digest of its config; torchkiln does not unpack it.
    :raises VerificationFailed: a layer is damaged.
    :raises BuildFailed: it cannot be unpacked.
    """
    tree, when, root = verified_tree(image, store, listener, in_engine=in_engine)
    if locked is None:
        return Verification(faults=(), when=when, root=root)
    planned = plan(locked, (), aliases=(), lock_digest=lock_digest(locked))
    expected = LockedFiles.of(locked, _recorded(planned, store), dict(planned.config.env))
    diff_ids = [layer.diff_id for layer in image.layers]
    found = tuple(faults(tree, diff_ids, image_env(image), expected))
    return Verification(faults=found, when=when, root=root)


def verified_tree(
    image: ImageOnDisk, store: Store, listener: RuntimeListener, *, in_engine: bool
) -> tuple[Mapping[str, TreeItem], str | None, Root | None]:
    """The files in the layers of *image*, and `when` and `root` of a `Verification`."""
    if not in_engine:
        return verified(image, store, listener)
    layers = layers_of(image)
    tree = kept_tree(store, layers)
    if tree is None:
        listener.say("reading the layers of the image once, to compare its files with the lock")
        tree = tree_of(store, layers)
    return tree, None, None


def _recorded(planned: ImagePlan, store: Store) -> Sequence[Digest | None]:
    """The diff_id of each layer below the overlay, from the lock, or from the record in *store*; or None."""
    in_lock = {layer.title: layer.blob.diff_id for layer in planned.locked.layers}
    found: list[Digest | None] = []
    for spec in planned.layers:
        if isinstance(spec, ArtefactLayer):
            found.append(spec.blob.diff_id)
        elif isinstance(spec, MadeLayer):
            found.append(in_lock.get(spec.title) or _made(spec, store))
    return found


def _made(spec: MadeLayer, store: Store) -> Digest | None:
    """The diff_id of the layer that this machine built from verified wheels; None: *store* has no record."""
    from torchkiln.engine.cache_keys import record_of

    made = record_of(spec, store)
    return made.blob.diff_id if made and made.verified else None


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedFiles:
    """What a lock says about an image: layers below the top one, distributions, environment variables."""

    layers: tuple[Digest | None, ...]  # diff_ids, lowest first; None: not recorded
    wheels: Mapping[str, str] = field(hash=False)  # normalized name -> version
    env: Mapping[str, str] = field(hash=False)

    @staticmethod
    def of(locked: LockedCell, layers: Sequence[Digest | None], env: Mapping[str, str]) -> LockedFiles:
        """The facts in *locked*; *layers* and *env* come from the plan of *locked*."""
        wheels = {wheel.name: wheel.version for wheel in locked.wheels}
        return LockedFiles(layers=tuple(layers), wheels=wheels, env=env)


def faults(
    tree: Mapping[str, TreeItem],
    diff_ids: Sequence[Digest],
    env: Mapping[str, str],
    locked: LockedFiles,
) -> tuple[str, ...]:
    """How an image differs from its lock; each text has the number of paths, and names at most ten.

    :param tree: the files in the image's layers.
    :param diff_ids: of the image's layers, lowest first.
    :param env: the environment variables in the image's config.
    """
    known = {number for number, diff_id in enumerate(diff_ids) if _at(locked.layers, number) == diff_id}
    found = [*_env(env, locked.env), *_layers(diff_ids, locked.layers)]
    found += _distributions(tree, locked.wheels, known)
    found += _files(tree, known)
    return tuple(printable(sentence) for sentence in found)


def _env(env: Mapping[str, str], expected: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(env.keys() | expected.keys()):
        if env.get(name) != expected.get(name):
            value = (
                f"sets {_quoted(f'{name}={env[name][:_VALUE]}')}" if name in env else f"does not set {name}"
            )
            wish = f"{name}={expected[name][:_VALUE]}" if name in expected else "no such variable"
            yield f"the image's config {value}; in the lock: {wish}"


def _layers(diff_ids: Sequence[Digest], expected: Sequence[Digest | None]) -> Iterator[str]:
    if len(diff_ids) != len(expected) + 1:
        yield f"the image has {len(diff_ids)} layers; in the lock: {len(expected) + 1}"
    for number, (found, wish) in enumerate(zip(diff_ids, expected, strict=False)):
        if wish is not None and found != wish:
            yield f"layer {number + 1} is {found}; in the lock: {wish}"


def _distributions(
    tree: Mapping[str, TreeItem], wheels: Mapping[str, str], known: Collection[int]
) -> Iterator[str]:
    """Distributions that are not in the lock, missing, of another version, or installed twice."""
    installed: dict[str, list[str]] = {}
    others = set()  # not in the lock; those in a *known* layer belong to OS packages and are allowed
    for path, item in tree.items():
        if _METADATA.search(path) and item.entry.text is not None:
            name, version = _identity(item.entry.text)
            installed.setdefault(name, []).append(version)
            if name not in wheels and item.layer not in known:
                others.add(name)
    names = (
        ("distributions that are not in the lock", others),
        ("distributions that are missing", wheels.keys() - installed.keys()),
        (
            "distributions of a different version than in the lock, or installed twice",
            {name for name in installed.keys() & wheels.keys() if installed[name] != [wheels[name]]},
        ),
    )
    yield from (_sentence(what, which) for what, which in names if which)


def _files(tree: Mapping[str, TreeItem], known: Collection[int]) -> Iterator[str]:
    """Faults of files in the layers whose diff_id is not in the lock; *known*: the numbers of the others."""
    recorded = _hashes_in_records(tree)
    changed, unknown, replaced, loader = [], [], [], []
    for path, item in tree.items():
        if item.layer in known or item.entry.kind == "folder":
            continue
        if item.over in known and (_PROGRAMS.match(path) or _MODULES.search(path)):
            replaced.append(path)
        elif path in recorded:
            if item.entry.kind != "file" or not _has_hash(item.entry.sha256, recorded[path], path):
                changed.append(path)
        elif _MODULES.search(path):
            unknown.append(path)
        elif _LOADER.match(path):
            loader.append(path)
    missing = [path for path in recorded if path not in tree]
    kinds = (
        ("files that differ from their RECORD", changed),
        ("files in a RECORD that are missing", missing),
        ("files in Python's module folders that no RECORD lists", unknown),
        ("files that replace those of the lock's layers", replaced),
        ("files that configure the loader, and are not in the lock's layers", loader),
    )
    yield from (_sentence(what, which) for what, which in kinds if which)


def _hashes_in_records(tree: Mapping[str, TreeItem]) -> dict[str, str]:
    """The hash of each file in a RECORD, `sha256=...` or empty, by path; "?" if two RECORDs disagree."""
    found: dict[str, str] = {}
    for path, item in tree.items():
        if not _RECORD.search(path) or item.entry.text is None:
            continue
        site = path.rsplit("/", 2)[0]
        with contextlib.suppress(csv.Error):  # the rest of a malformed RECORD counts as not listed
            for row in csv.reader(io.StringIO(item.entry.text)):
                if len(row) == 3:
                    place = posixpath.normpath(posixpath.join("/", site, row[0])).lstrip("/")
                    hashed = row[1] or found.get(place, "")
                    found[place] = hashed if found.get(place, hashed) in ("", hashed) else "?"
    return found


def _has_hash(sha256: str, recorded: str, path: str) -> bool:
    """Whether *sha256* is the *recorded* hash; if RECORD has no hash, whether *path* needs none."""
    if not recorded:
        return bool(_UNHASHED.search(path))
    algorithm, _, value = recorded.partition("=")
    try:
        data = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except (ValueError, binascii.Error):
        return False
    return algorithm == "sha256" and data.hex() == sha256


def _identity(metadata: str) -> tuple[str, str]:
    """The normalized name and the version in METADATA."""
    head = metadata.partition("\n\n")[0]
    fields = dict(re.findall(r"(?m)^(Name|Version):[ \t]*(.*?)[ \t\r]*$", head))
    return re.sub(r"[-_.]+", "-", fields.get("Name", "")).lower(), fields.get("Version", "")


def _sentence(what: str, names: Iterable[str]) -> str:
    names = sorted(names)
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{what} ({len(names)}): {', '.join(map(_quoted, names[:_NAMED]))}{more}"


def _quoted(text: str) -> str:
    """*text* with escaped spaces: else a file's name could look like a host error to `verdict.host_fault`."""
    return text.replace(" ", "\\x20")


def _at(layers: Sequence[Digest | None], number: int) -> Digest | None:
    return layers[number] if number < len(layers) else None
