"""Builds a base from the distribution's archive with mmdebstrap."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import IO
from urllib.parse import quote

from torchkiln.base.archive import record_packages
from torchkiln.base.complaint import complaint
from torchkiln.base.contents import inspect
from torchkiln.base.own_users import ISOLATED, own_users
from torchkiln.base.recipe import (
    APT_CLEANING,
    CLEANING,
    ON_TOP,
    ArchiveSources,
    BaseRecipe,
    copying,
    edits,
    sources_of,
    variables,
)
from torchkiln.base.remake import record_effects
from torchkiln.base.tree_tar import dev_folder
from torchkiln.errors import BuildFailed, ToolMissing
from torchkiln.model.lock import LockedBase
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.model.progress import UNREPORTED, Reporting
from torchkiln.oci.encode import ENCODER, encode
from torchkiln.oci.tar_reader import IteratorFile, pieces_of
from torchkiln.store.store import Store
from torchkiln.util.scratch import held
from torchkiln.util.scratch import scratch as temporary_folder

# The only variables of the caller's environment that are passed on: others would change the result.
_PASSED_ON = ("APT_CONFIG", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_HIDDEN = re.compile(
    r"I: (chroot arch|skipping|running (--|special)|nothing to|no essential|using|removing|done|success"
    r"|main\(\) received signal)"
)
STALLED = 600.0  # seconds without a line of output, which names each file that apt downloads
DEBS = "/var/cache/apt/archives"
PINS = "/etc/apt/preferences.d/torchkiln"
_SOURCES = '"$1"/etc/apt/sources.list'
_WATCHDOG = 'read -r _; kill -s TERM -- "-$1"; sleep 5; kill -s KILL -- "-$1"'
_PLANNED = re.compile(r"\d+ upgraded, (?P<count>\d{1,6}) newly installed, .*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scratch:
    """The working folder of mmdebstrap for a recipe."""

    recipe: BaseRecipe
    environ: Mapping[str, str]  # with mirrors and proxies
    report: Reporting  # gets the steps, and the number of configured packages
    env: Mapping[str, str]  # the environment of mmdebstrap
    folder: Path
    lists: Path  # a folder for apt's lists
    debs: Path  # a folder for the packages that apt downloads
    keyring: Path  # a copy that apt's own user can read

    @contextlib.contextmanager
    def running(self, onto: ExistingBase | Extraction | None = None) -> Iterator[IO[bytes]]:
        """The tar that mmdebstrap writes; see `command` and `running`."""
        root, folders = os.geteuid() == 0, (self.folder / "work", self.lists, self.debs)
        users, why = own_users(folders) if root else ((), "")
        if why:
            self.report.say(f"scripts of packages run as root of this host: {why}")
        argv = command(self.recipe, self.environ, unprivileged=not root, place=self, onto=onto, users=users)
        with running(argv, self.env, self.recipe, self.report) as tar:
            yield tar


@dataclass(frozen=True, kw_only=True, slots=True)
class ExistingBase:
    """An existing base in which mmdebstrap installs packages; all users can read these files."""

    layers: tuple[Path, ...]  # its gzipped tars, lowest first
    pins: Path  # apt preferences during the installation
    packages: tuple[str, ...] = ()  # to install
    debs: Path | None = None  # an indexed folder of .deb files, in place of the archive and the network
    queries: tuple[str, ...] = ()  # hooks that only query apt; mmdebstrap then writes no tar


@dataclass(frozen=True, kw_only=True, slots=True)
class Extraction:
    """Packages of another platform, which are only downloaded and extracted: no program of them runs."""

    architecture: str  # Debian's: "arm64"
    packages: tuple[str, ...]  # "gcc=4:12.2.0-3"


def build(
    recipe: BaseRecipe, store: Store, *, environ: Mapping[str, str], report: Reporting = UNREPORTED
) -> LockedBase:
    """Build *recipe* from the current state of the archive and put the blob into *store*.

    Runs as root, or as a user who can create user namespaces. Takes about a minute, and temporarily 800 MB in
    $TMPDIR. *environ* has the proxies and mirrors; they do not change the result.

    :param report: gets the steps, and the number of configured packages.
    :raises ToolMissing: mmdebstrap or the archive's keyring is not installed.
    :raises ConfigError: a mirror is not a URL.
    :raises BuildFailed: mmdebstrap failed, or its result is not a valid base.
    """
    temporary = store.temporary(f"base-{recipe.os}")
    try:
        with scratch(recipe, environ, report) as place:
            with place.running() as tar, store.writable():
                encoded = encode(IteratorFile(chain([dev_folder(recipe.epoch)], pieces_of(tar))), temporary)
            contents = inspect(temporary)
            debs = record_packages(contents.packages, encoded.digest, place.lists, place.debs, store)
        with store.writable():
            store.adopt(temporary, store.blob(encoded.digest))
    finally:
        temporary.unlink(missing_ok=True)
    if not contents.python.startswith(f"{recipe.python}."):
        mirror, suite = variables(recipe)[0], recipe.suite
        raise BuildFailed(
            f"wrong Python in the base of {recipe.os}: expected {recipe.python}, got {contents.python}",
            hint=f"check that the archive in {mirror} has the release {suite}, or set another archive",
        )
    base = LockedBase(
        os=recipe.os,
        python=contents.python,
        **asdict(encoded),
        encoder=ENCODER,
        packages=contents.packages,
        untrusted=sources_of(recipe, environ).untrusted,
    )
    record_effects(base, base, debs, store, report.say)
    return base


def command(
    recipe: BaseRecipe,
    environ: Mapping[str, str],
    *,
    unprivileged: bool,
    place: Scratch | None = None,
    onto: ExistingBase | Extraction | None = None,
    users: tuple[str, ...] = (),
) -> list[str]:
    """The command line of mmdebstrap, which writes the tar to stdout. Pure.

    :param place: apt's lists are copied there after the installation.
    :param onto: install packages into this base, or query apt in it, or only extract packages, instead of
        building a base.
    :param users: see `own_users`.
    :raises ConfigError: a mirror is not a URL.
    """
    sources = sources_of(recipe, environ)
    extraction, onto = (onto, None) if isinstance(onto, Extraction) else (None, onto)
    if onto and onto.queries:
        sources = copying(sources)
    setup, restore = _mirror_hooks(sources)
    downloads = not (onto and (onto.debs or onto.queries))
    copies = [("/var/lib/apt/lists", place.lists)] if place else []
    copies += [(DEBS, place.debs)] if place and downloads else []
    copy_out = tuple(f"sync-out {inside} {shlex.quote(str(outside))}" for inside, outside in copies)
    variant, packages, hooks = "minbase", recipe.packages, recipe.hooks
    if onto:
        variant, packages = "custom", onto.packages
        if onto.debs:
            # The hashes of the files in this folder were checked before.
            line = f"deb [trusted=yes] copy://{quote(str(onto.debs))} ./"
            setup, restore = _source_hooks(f"echo {shlex.quote(line)} >{_SOURCES}")
        setup = (
            *(_unpacking(layer) for layer in onto.layers),
            f"upload {shlex.quote(str(onto.pins))} {PINS}",
            *setup,
        )
        hooks = (f'rm "$1{PINS}"', *ON_TOP, *CLEANING)
        if onto.queries:
            restore, hooks = (), onto.queries
    if extraction:
        variant, packages, restore, hooks = "extract", extraction.packages, (), ()
    when = "extract" if extraction else "customize"
    # As root, mmdebstrap would mount /proc and /sys on the host, and leave them mounted if it is killed; and
    # what scripts of packages leave running would not end with it.
    offline = ("--net",) if onto and onto.debs else ()
    isolated = [] if unprivileged else [*users, "unshare", "--mount", *offline, *ISOLATED]
    return [
        *isolated,
        "mmdebstrap",
        "--verbose",  # the output of apt and dpkg, which names each package
        f"--mode={'unshare' if unprivileged or users else 'root'}",
        f"--variant={variant}",
        *((f"--include={','.join(packages)}",) if packages else ()),
        f"--architectures={extraction.architecture if extraction else LINUX_AMD64.architecture}",
        f"--format={'null' if extraction or (onto and onto.queries) else 'tar'}",
        f"--keyring={place.keyring if place else sources.keyring}",
        f"--components={','.join(recipe.components)}",
        *(f"--dpkgopt={option}" for option in recipe.dpkg_options),
        # The keyring is set above. With check/signed-by, sources.list would name it on some hosts.
        # The packages and lists are kept until they are copied.
        "--skip=check/signed-by,output/dev,essential/unlink,cleanup/apt",
        *(f"--setup-hook={hook}" for hook in setup),
        *(f"--{when}-hook={hook}" for hook in (*restore, *hooks, *copy_out, APT_CLEANING)),
        recipe.suite,
        "-",
    ]


def _mirror_hooks(sources: ArchiveSources) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Hooks that set the user's mirrors, and that restore the original sources.list."""
    lines = edits(sources)
    return _source_hooks(f"sed -i {shlex.quote(chr(10).join(lines))} {_SOURCES}") if lines else ((), ())


def _source_hooks(change: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Hooks that change sources.list by the command *change*, and that restore the original."""
    return (f"cp -p {_SOURCES} {_SOURCES}.default && {change}",), (f"mv {_SOURCES}.default {_SOURCES}",)


def _unpacking(layer: Path) -> str:
    return (
        f'tar --extract --gzip --file={shlex.quote(str(layer))} --directory="$1"'
        " --numeric-owner --same-owner --preserve-permissions --xattrs --xattrs-include='*'"
    )


@contextlib.contextmanager
def scratch(
    recipe: BaseRecipe, environ: Mapping[str, str], report: Reporting = UNREPORTED
) -> Iterator[Scratch]:
    """A temporary folder for mmdebstrap.

    :raises ToolMissing: mmdebstrap or the archive's keyring is not installed.
    """
    keys = Path(sources_of(recipe, environ).keyring)
    _require(recipe, keys)
    with temporary_folder("base") as folder:
        folder.chmod(0o755)  # for apt and the root of the namespace, which are other users
        env = {name: environ[name] for name in _PASSED_ON if name in environ}
        work, lists, debs = folder / "work", folder / "lists", folder / "archives"
        for one in (work, lists, debs):
            one.mkdir()
            one.chmod(0o755)
        env |= {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder), "TMPDIR": str(work)}
        env |= {"SOURCE_DATE_EPOCH": str(recipe.epoch), "LC_ALL": "C.UTF-8"}
        env["DEBIAN_FRONTEND"] = "noninteractive"
        # apt checks signatures as its own user, who may have no access to a home folder.
        keyring = Path(shutil.copyfile(keys, folder / f"keyring{keys.suffix}"))
        keyring.chmod(0o644)
        yield Scratch(
            recipe=recipe,
            environ=environ,
            report=report,
            env=env,
            folder=folder,
            lists=lists,
            debs=debs,
            keyring=keyring,
        )


def _require(recipe: BaseRecipe, keyring: Path) -> None:
    if not shutil.which("mmdebstrap"):
        raise ToolMissing(
            "mmdebstrap: command not found; it is needed to build the base",
            hint="install it: apt-get install mmdebstrap; or build from a vault: build --vault",
        )
    if not keyring.is_file():
        raise ToolMissing(
            f"keyring of the archive of {recipe.os} not found: {keyring}",
            hint=f"install {recipe.distribution.capitalize()}'s package {recipe.keyring_package}, or set"
            f" {variables(recipe)[2]} to a keyring; or build from a vault: build --vault",
        )


@contextlib.contextmanager
def running(
    argv: list[str], env: Mapping[str, str], recipe: BaseRecipe, report: Reporting
) -> Iterator[IO[bytes]]:
    """The stdout of mmdebstrap, which is terminated at the end of the block if it still runs.

    If this process is killed, a watchdog terminates mmdebstrap, which then removes its files. The rest of the
    scratch folder can be deleted when mmdebstrap and its children have released the folder's lock.

    :raises BuildFailed: mmdebstrap failed; the message has the cause.
    """
    last: deque[str] = deque(maxlen=400)
    place = Path(env["TMPDIR"]).parent
    lock = held(place)
    # In a new session: Ctrl-C only reaches this process, which ends the whole group.
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, lock)
        process = stack.enter_context(
            subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                umask=0o022,
                cwd="/",
                pass_fds=(lock,),
            )
        )
        stack.enter_context(_watched(process.pid))
        assert process.stdout is not None
        assert process.stderr is not None
        listener = threading.Thread(target=_listen, args=(_lines(process), last, report), daemon=True)
        listener.start()
        try:
            yield process.stdout
            process.wait()
        finally:
            if process.returncode is None:  # the block ended early
                _end(process)
            listener.join()
    if code := process.returncode:
        where = str(place.parent)  # the scratch folder itself is removed
        mirror, _, keyring = variables(recipe)
        elsewhere = f"set another archive with {mirror}, or build from a vault: build --vault"
        keys = f"check the keyring ({keyring}, or package {recipe.keyring_package})"
        raise complaint(code, last, os_name=recipe.os, scratch=where, elsewhere=elsewhere, keys=keys)


@contextlib.contextmanager
def _watched(group: int) -> Iterator[None]:
    """End the process group *group* if this process is killed, which closes the watchdog's stdin."""
    with subprocess.Popen(
        ["sh", "-c", _WATCHDOG, "sh", str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as watchdog:
        try:
            yield
        finally:
            watchdog.kill()


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """The lines of stderr. The process is ended if it prints nothing for too long: apt has no such limit."""
    assert process.stderr is not None
    line, text = "", b""
    while select.select([process.stderr], [], [], STALLED)[0]:
        if not (piece := os.read(process.stderr.fileno(), 1 << 16)):
            yield text.decode(errors="replace")
            return
        *lines, text = (text + piece).split(b"\n")
        for line in (raw.decode(errors="replace").rstrip() for raw in lines):
            yield line
    yield f"E: timed out: no progress in {STALLED:g} seconds after: {line}"
    _kill(process)


def _listen(lines: Iterable[str], last: deque[str], report: Reporting) -> None:
    """Read *lines* of mmdebstrap: keep the last ones, and report its steps and the packages."""
    for line in lines:
        if line:
            last.append(line)
        # apt announces the essential packages of a base first, and the others after these are configured.
        if found := _PLANNED.fullmatch(line):
            report.observer.begin("packages", "packages", int(found["count"]))
        elif line.startswith("Setting up "):
            report.observer.advance("packages", "packages", 1)
        elif line.startswith("I: ") and not _HIDDEN.match(line):
            report.say(line.removeprefix("I: "))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, so that mmdebstrap removes its folder (which a namespace may own), then SIGKILL."""
    assert process.stdout is not None
    process.stdout.close()  # unblock writers
    _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(15)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
