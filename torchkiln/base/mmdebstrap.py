"""BaseRecipe → LockedBase: build a base from the distribution's archive with mmdebstrap."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import RawIOBase
from pathlib import Path
from typing import IO, BinaryIO, cast

from torchkiln.base.archive import note_files, read_lists
from torchkiln.base.complaint import complaint
from torchkiln.base.contents import inspect, locked_base
from torchkiln.base.recipe import CLEANING, ON_TOP, BaseRecipe
from torchkiln.base.sources import Sources, edits, sources_of, variables
from torchkiln.errors import BuildFailed, ToolMissing
from torchkiln.model.lock import BaseFiles, LockedBase, LockedTools
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.oci.encode import encode
from torchkiln.store.store import Store
from torchkiln.util.scratch import held
from torchkiln.util.scratch import scratch as temporary_folder

# All that the build sees of the caller's environment: how to reach the archive and where scratch space is.
# Locale, umask and the like would leak into the result.
_PASSED_ON = (
    "TMPDIR",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "APT_CONFIG",
)
_CHATTER = (
    "I: chroot arch",
    "I: skipping",
    "I: running --",
    "I: running special",
    "I: nothing to",
    "I: no essential",
    "I: using",
    "I: removing",
    "I: done",
    "I: success",
    "I: main() received signal",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scratch:
    """Where mmdebstrap works."""

    env: Mapping[str, str]  # its environment
    lists: Path  # a folder for apt's lists
    keyring: Path  # a copy that apt's own user can read


@dataclass(frozen=True, kw_only=True, slots=True)
class Onto:
    """A base that is there already, to which packages are added; files that any user can read."""

    base: Path  # its gzipped tar
    pins: Path  # apt's preferences while they are installed
    packages: tuple[str, ...]


_PINS = "/etc/apt/preferences.d/torchkiln"


def build(
    recipe: BaseRecipe,
    store: Store,
    *,
    environ: Mapping[str, str],
    say: Callable[[str], None] = lambda _: None,
) -> LockedBase:
    """Build *recipe* from the archive's present state and keep the blob in *store*.

    As root, or without where user namespaces allow. Takes about a minute, 800 MB under $TMPDIR while it runs.
    *environ* tells proxies and the mirrors that the user set; nothing of it is in the result.

    :raises ToolMissing: mmdebstrap or the archive's keyring is not here.
    :raises ConfigError: a mirror is not an address.
    :raises BuildFailed: mmdebstrap failed, or its result is not fit to be a base.
    """
    temporary = store.temporary(f"base-{recipe.os}")
    try:
        with scratch(recipe, environ) as place:
            argv = command(recipe, environ, unprivileged=os.geteuid() != 0, place=place)
            with running(argv, place.env, recipe, say) as tar, store.writable():
                encoded = encode(cast(BinaryIO, _Prefixed(dev_folder(recipe.epoch), tar)), temporary)
            contents = inspect(temporary)
            debs = read_lists(place.lists, contents.packages)
        with store.writable():
            store.adopt(temporary, store.blob(encoded.digest))
            note_files(store, BaseFiles(base=encoded.digest, debs=debs))
    finally:
        temporary.unlink(missing_ok=True)
    if not contents.python.startswith(f"{recipe.python}."):
        raise BuildFailed(f"{recipe.os} should bring Python {recipe.python} and has {contents.python}")
    untrusted = sources_of(recipe, environ).untrusted
    return replace(locked_base(recipe.os, encoded, contents), untrusted=untrusted)


def ask_archive(
    recipe: BaseRecipe,
    locked: LockedBase | LockedTools,
    *,
    environ: Mapping[str, str],
    say: Callable[[str], None] = lambda _: None,
) -> BaseFiles:
    """What the archive's signed index says now of the packages of *locked*, with no base built: seconds.

    :raises KilnError: as for `build`.
    """
    with scratch(recipe, environ) as place:
        argv = command(recipe, environ, unprivileged=os.geteuid() != 0, place=place, bare=True)
        with running(argv, place.env, recipe, say) as tar:
            while tar.read(1 << 20):
                pass
        return BaseFiles(base=locked.digest, debs=read_lists(place.lists, locked.packages))


def command(
    recipe: BaseRecipe,
    environ: Mapping[str, str],
    *,
    unprivileged: bool,
    place: Scratch | None = None,
    bare: bool = False,
    onto: Onto | None = None,
) -> list[str]:
    """mmdebstrap's argv; the tar goes to its stdout. Pure.

    :param place: its lists get what apt knows of the archive, when all is installed.
    :param bare: install nothing.
    :param onto: install these packages into that base, and no base of the recipe's own.
    :raises ConfigError: a mirror is not an address.
    """
    sources = sources_of(recipe, environ)
    setup, restore = _mirror_hooks(sources)
    noted = (f"sync-out /var/lib/apt/lists {shlex.quote(str(place.lists))}",) if place else ()
    variant, packages, hooks = "minbase", recipe.packages, recipe.hooks
    if bare:
        variant, packages, hooks = "custom", (), ()
    if onto:
        variant, packages, hooks = "custom", onto.packages, (f'rm "$1{_PINS}"', *ON_TOP, *CLEANING)
        setup = (
            f'tar --extract --gzip --file={shlex.quote(str(onto.base))} --directory="$1"'
            " --numeric-owner --same-owner --preserve-permissions --xattrs --xattrs-include='*'",
            f"upload {shlex.quote(str(onto.pins))} {_PINS}",
            *setup,
        )
    # As root it would mount /proc and /sys in the host's own namespace, and killed, would leave them there.
    alone = [] if unprivileged else ["unshare", "--mount", "--propagation=private", "--"]
    return [
        *alone,
        "mmdebstrap",
        f"--mode={'unshare' if unprivileged else 'root'}",
        f"--variant={variant}",
        *((f"--include={','.join(packages)}",) if packages else ()),
        f"--architectures={LINUX_AMD64.architecture}",
        "--format=tar",
        f"--keyring={place.keyring if place else sources.keyring}",
        f"--components={','.join(recipe.components)}",
        *(f"--dpkgopt={option}" for option in recipe.dpkg_options),
        # The keyring is named above; whether sources.list names it too would hang on what the host trusts.
        "--skip=check/signed-by,output/dev",
        *(f"--setup-hook={hook}" for hook in setup),
        *(f"--customize-hook={hook}" for hook in (*restore, *hooks, *noted)),
        recipe.suite,
        "-",
    ]


def _mirror_hooks(sources: Sources) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Hooks that put the user's mirrors in, and that put back what mmdebstrap had written."""
    lines = edits(sources)
    if not lines:
        return (), ()
    there, aside = '"$1/etc/apt/sources.list"', '"$1/etc/apt/sources.list.default"'
    script = shlex.quote("\n".join(lines))
    return (f"cp -p {there} {aside} && sed -i {script} {there}",), (f"mv {aside} {there}",)


@contextlib.contextmanager
def scratch(recipe: BaseRecipe, environ: Mapping[str, str]) -> Iterator[Scratch]:
    """A folder for mmdebstrap, which goes with the block.

    :raises ToolMissing: mmdebstrap or the archive's keyring is not here.
    """
    keys = Path(sources_of(recipe, environ).keyring)
    _require(recipe, keys)
    with temporary_folder("base") as place:
        place.chmod(0o755)  # apt and the namespace's root are other users
        folder = str(place)
        env = {name: environ[name] for name in _PASSED_ON if name in environ}
        env |= {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": folder, "TMPDIR": folder}
        env |= {
            "LC_ALL": "C.UTF-8",
            "SOURCE_DATE_EPOCH": str(recipe.epoch),
            "DEBIAN_FRONTEND": "noninteractive",
        }
        lists = Path(folder, "lists")
        lists.mkdir()
        # Who checks signatures is a user of apt's own, whom a home folder may shut out.
        keyring = Path(shutil.copyfile(keys, Path(folder, f"keyring{keys.suffix}")))
        keyring.chmod(0o644)
        yield Scratch(env=env, lists=lists, keyring=keyring)


def _require(recipe: BaseRecipe, keyring: Path) -> None:
    if not shutil.which("mmdebstrap"):
        raise ToolMissing(
            "mmdebstrap is not installed, and the base must be built",
            hint="as root: apt-get install mmdebstrap; or hand over a base made elsewhere: --base FILE",
        )
    if not keyring.is_file():
        raise ToolMissing(
            f"the keys of {recipe.os}'s archive are not here: {keyring}",
            hint=f"{recipe.distribution.capitalize()}'s package {recipe.keyring_package} brings them; keys"
            f" elsewhere are named by {variables(recipe)[2]}; or hand over a base: --base FILE",
        )


def dev_folder(epoch: int) -> bytes:
    """A tar header for an empty /dev: mmdebstrap leaves it out, or fills it with nodes."""
    info = tarfile.TarInfo("./dev/")
    info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, epoch
    return info.tobuf(tarfile.USTAR_FORMAT)


class _Prefixed(RawIOBase):
    """A stream with some bytes before it."""

    def __init__(self, head: bytes, tail: IO[bytes]) -> None:
        self._head, self._tail = head, tail

    def read(self, size: int = -1) -> bytes:
        if self._head:
            given, self._head = self._head[:size], self._head[size:]
            return given
        return self._tail.read(size)


@contextlib.contextmanager
def running(
    argv: list[str], env: Mapping[str, str], recipe: BaseRecipe, say: Callable[[str], None]
) -> Iterator[IO[bytes]]:
    """mmdebstrap's stdout while it runs; however the block ends, nothing of it runs on.

    If this process is killed, a watchdog ends mmdebstrap, which then removes what it unpacked. The rest of
    the scratch folder is swept when nothing holds it any more: mmdebstrap and its children do.

    :raises BuildFailed: it failed; why is told.
    """
    last: deque[str] = deque(maxlen=60)
    lock = held(Path(env["TMPDIR"]))
    # A session of its own: Ctrl-C comes to us alone, and we end the whole group.
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
        listener = threading.Thread(target=_listen, args=(process.stderr, last, say), daemon=True)
        listener.start()
        try:
            yield process.stdout
            process.wait()
        finally:
            if process.returncode is None:  # we are leaving before it does
                _end(process)
            listener.join()
    if code := process.returncode:
        where = str(Path(env["TMPDIR"]).parent)  # the scratch folder itself is as good as gone
        mirror, _, keyring = variables(recipe)
        elsewhere = (
            f"another archive can be set by {mirror}; a base made elsewhere can be given by --base FILE"
        )
        raise complaint(
            code,
            last,
            os_name=recipe.os,
            scratch=where,
            elsewhere=elsewhere,
            keys=f"its keys are {keyring}'s, or those of {recipe.keyring_package}",
        )


_WATCHDOG = 'read -r _; kill -s TERM -- "-$1"; sleep 5; kill -s KILL -- "-$1"'


@contextlib.contextmanager
def _watched(group: int) -> Iterator[None]:
    """End the process group *group* if this process is killed: its end closes the watchdog's stdin."""
    with subprocess.Popen(
        ["sh", "-c", _WATCHDOG, "sh", str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as dog:
        try:
            yield
        finally:
            dog.kill()


def _listen(stream: IO[bytes], last: deque[str], say: Callable[[str], None]) -> None:
    for raw in stream:
        line = raw.decode(errors="replace").rstrip()
        if line:
            last.append(line)
        if line.startswith("I: ") and not line.startswith(_CHATTER):
            say(line.removeprefix("I: "))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask first, for mmdebstrap then removes its folder, which a user namespace may own; then insist."""
    assert process.stdout is not None
    process.stdout.close()  # nobody may wait for us to read
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(15)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
