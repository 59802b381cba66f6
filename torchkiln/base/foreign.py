"""Makes the base of another platform; none of its programs runs.

It has the packages of the default platform's base, in the same versions. What their scripts did is known from
the effects of that base: the same paths are made, with the names of the platform replaced. Three files differ
more: the status of dpkg and the cache of the loader are written anew, and the Python of the default
platform's base, which has the same version, makes the byte-code.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torchkiln.base import dpkg_status, loader_cache
from torchkiln.base.archive import deb_path, keep, read_dates, read_files, read_lists, record_files
from torchkiln.base.contents import inspect
from torchkiln.base.effects import Effect, Effects, source_of, with_effects
from torchkiln.base.interpreter import interpreter
from torchkiln.base.mmdebstrap import Extraction, Scratch, scratch
from torchkiln.base.plain_tree import Tree, order, plain_tree
from torchkiln.base.recipe import recipe, sources_of
from torchkiln.base.remake import compiling, debs_of, put_effects, read_effects, scratch_spool, tar_of
from torchkiln.errors import BuildFailed
from torchkiln.model.digest import Digest
from torchkiln.model.lock import BaseFiles, DebFile, LockedBase, OsPackage
from torchkiln.model.platform import LINUX_AMD64, Platform
from torchkiln.model.progress import Reporting
from torchkiln.oci.encode import ENCODER, encode
from torchkiln.oci.tar_reader import IteratorFile
from torchkiln.store.store import Store

_NONE = Digest("sha256:" + "0" * 64)
_LIST = re.compile(r"var/lib/dpkg/info/[^/]+\.list")
_DOCUMENTS = re.compile(r"usr/share/doc/[^/]+")
_OWN = (loader_cache.PATH, dpkg_status.PATH)  # written anew


def build_foreign(
    native: LockedBase, platform: Platform, store: Store, *, environ: Mapping[str, str], report: Reporting
) -> LockedBase:
    """Make the base for *platform* with the packages of *native* and put its blob into *store*.

    :raises BuildFailed: a package cannot be had for *platform* in this version, or the packages and effects
        of *native* are not in *store*.
    """
    wanted, effects = recipe(native.os), read_effects(None, native, store)
    files = read_files(None, native, store)
    if files is None or effects is None:
        what = f"the packages and effects of the base of {native.os} are not known"
        raise BuildFailed(what, hint=f"run: torchkiln base build --os {native.os} --lock")
    names, own = _Names(platform), debs_of(native, files.dates, store, environ)
    wanted_debs = {
        names.renamed(deb.name): deb.version for deb in files.debs if deb.name not in platform.lacking
    }
    with scratch(wanted, environ, report) as place:
        found = _downloaded(wanted_debs, platform, place, store)
    report.say(f"making the base of {native.os} for {platform.name} from its {len(found.debs)} packages")
    temporary = store.temporary(f"base-{native.os}")

    def kept(deb: DebFile) -> Path:
        return store.root / deb_path(deb)

    try:
        with scratch_spool(store) as (folder, spool):
            before = plain_tree(files.debs, own.path, effects.rules, spool)
            plain = plain_tree(found.debs, kept, effects.rules, spool)
            more = [deb for deb in found.debs if deb.name not in wanted_debs]
            whole = plain_tree(more, kept, replace(effects.rules, dpkg_options=()), spool)
            made = transferred(effects, before, plain, names)
            status = dpkg_status.dpkg_status(found.debs, kept, plain, effects.rules)
            glibc = next(deb.version for deb in found.debs if deb.name == "libc6")
            cache = loader_cache.loader_cache(plain, platform, glibc)
            new = (
                Effect(path=dpkg_status.PATH, text=status.decode()),
                Effect(path=loader_cache.PATH, base64=base64.b64encode(cache).decode()),
                *_licences(whole),
            )
            changed = sorted((*made.changed, *new), key=lambda one: order(one.path))
            made = replace(made, changed=tuple(changed))
            tree = with_effects(plain, made, compiling(native, None, store, folder))
            with store.writable():
                encoded = encode(IteratorFile(tar_of(tree, made)), temporary)
        contents = inspect(temporary)
        with store.writable():
            store.adopt(temporary, store.blob(encoded.digest))
    finally:
        temporary.unlink(missing_ok=True)
    base = LockedBase(
        os=native.os,
        python=contents.python,
        **asdict(encoded),
        encoder=ENCODER,
        packages=contents.packages,
        untrusted=sources_of(wanted, environ).untrusted,
        platform=platform.name,
    )
    record_files(store, replace(found, base=base.digest))
    put_effects(base, replace(made, blob=base.digest), store)
    interpreter(base, store, native=native)
    return base


def _downloaded(packages: Mapping[str, str], platform: Platform, place: Scratch, store: Store) -> BaseFiles:
    """*packages*, name -> version, and those that they need, in *store*."""
    wanted = tuple(f"{name}={version}" for name, version in packages.items())
    with place.running(Extraction(architecture=platform.architecture, packages=wanted)) as nothing:
        nothing.read()
    listed = (path.name.split("_") for path in place.debs.glob("*.deb"))
    chosen = [OsPackage(name=name, version=version.replace("%3a", ":")) for name, version, _ in listed]
    debs = read_lists(place.lists, chosen)
    keep(place.debs, debs, store)
    return BaseFiles(base=_NONE, debs=debs, dates=read_dates(place.lists))


def _licences(tree: Tree) -> Iterator[Effect]:
    """The links to folders with a licence, which dpkg keeps."""
    for path, node in tree.items():
        if _DOCUMENTS.fullmatch(path) and node.entry.kind == "link":
            yield Effect(path=path, kind="link", mode=node.entry.mode, target=node.entry.target)


@dataclass(frozen=True, slots=True)
class _Names:
    """Replaces the names of the default platform by those of another."""

    platform: Platform

    def renamed(self, text: str) -> str:
        for name in (LINUX_AMD64.multiarch, LINUX_AMD64.multiarch.replace("_", "-")):
            text = text.replace(name, self.platform.multiarch)
        return text

    def effect(self, effect: Effect) -> Effect:
        text = self.renamed(effect.text)
        if effect.path.startswith("var/lib/"):  # of apt and dpkg
            text = re.sub(rf"\b{LINUX_AMD64.architecture}\b", self.platform.architecture, text)
        path, target = self.renamed(effect.path), self.renamed(effect.target)
        if path.endswith(".pyc"):  # some have the time of their source, which differs
            return replace(effect, path=path, kind="byte-code", base64="")
        return replace(effect, path=path, target=target, text=text)


def transferred(effects: Effects, before: Tree, after: Tree, names: _Names) -> Effects:
    """*effects* on the packages *before*, for the packages *after*, without the files in `_OWN`."""
    had, has = (_listed(tree, effects) | tree.keys() for tree in (before, after))
    gone = {pair.partition("=")[0]: pair.partition("=")[2] for pair in effects.merged}
    gone = {top: to for top, to in gone.items() if not any(path.startswith(f"{to}/") for path in has)}

    def applies(old: Effect, new: Effect) -> bool:
        if new.path in (*_OWN, *gone, *gone.values()):
            return False
        if old.path in had:
            return new.path in has
        return new.kind != "byte-code" or source_of(new.path, after) is not None

    pairs = ((old, names.effect(old)) for old in effects.changed)
    return replace(
        effects,
        blob=_NONE,
        merged=tuple(pair for pair in effects.merged if pair.partition("=")[0] not in gone),
        removed=tuple(path for path in map(names.renamed, effects.removed) if path in after),
        changed=tuple(new for old, new in pairs if applies(old, new)),
    )


def _listed(tree: Tree, effects: Effects) -> set[str]:
    """The paths of all packages, also those that dpkg left out."""
    lists: Iterator[bytes] = (b"".join(tree[path].pieces()) for path in tree if _LIST.fullmatch(path))
    return {effects.rules.placed(line[1:]) for data in lists for line in data.decode().splitlines()}
