"""Runs git for repositories on other machines, with limits and without the user's settings.

Repositories are not trusted. Nothing is checked out: no hook, filter or submodule of a repository can start a
program. git reads no configuration, asks for no password, and connects by HTTPS only (to this machine also by
HTTP). It uses the user's proxy and certificates of the package index, and ~/.netrc.

A commit becomes a tar with the same bytes on each machine: its files are read from git's objects, because
`git archive` and a checkout depend on attributes and settings. A repository with submodules, and a package
with files of Git LFS, are refused.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from torchkiln.errors import BuildFailed, ToolMissing, printable
from torchkiln.index.settings import IndexSettings, redact, redact_text
from torchkiln.projects.sources.by_commit import url_fault
from torchkiln.util.files import tree_size
from torchkiln.util.sizes import size

SECONDS = 600.0  # time limit for one package
STALLED = 120.0  # seconds without progress: git has no limit for a TLS handshake
DISK = 1 << 30  # bytes on disk, of the repository
MEMORY = 4 << 30  # bytes of address space of each process
OUTPUT = 64 << 20  # bytes that a command prints
_POLL = 0.05  # seconds
_STDERR = 1 << 14  # bytes
_SETTINGS = (
    "protocol.allow=never",
    "protocol.https.allow=always",
    "protocol.version=2",  # with version 2, a server sends any commit that it has
    "http.followRedirects=initial",
    "http.lowSpeedLimit=1024",  # bytes per second
    "http.lowSpeedTime=60",
    "credential.helper=",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.bigFileThreshold=16m",  # larger files are not held in memory
    "fetch.recurseSubmodules=false",
    "fetch.unpackLimit=1",
    "gc.auto=0",
    "maintenance.auto=false",
)
_VARIABLES = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "LC_ALL": "C",
}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_UNKNOWN = re.compile(r"not our ref|unadvertised object|remote ref|does not have the commit", re.IGNORECASE)
_DENIED = re.compile(
    r"could not read Username|terminal prompts disabled|Authentication failed|error: 40[13]|not found",
    re.IGNORECASE,
)
_CERTIFICATE = re.compile(r"certificate", re.IGNORECASE)
FILES = 100_000
SIZE = 1 << 30  # bytes of all files
_PATH = 4000  # bytes of a path
_TARGET = 4096  # bytes of the target of a link
_TIME = 315532800  # 1980-01-01, the earliest date in a zip file
_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_POINTER_SIZE = 1024
_BUILDS = ("pyproject.toml", "setup.py")
_ENTRY = re.compile(
    rb"(?P<mode>[0-7]{6}) (?P<kind>[a-z]+) (?P<id>[0-9a-f]{40}) +(?P<size>[0-9]+|-)\t(?P<path>.+)", re.DOTALL
)
_LINK, _SUBMODULE = "120000", "160000"


@dataclass(frozen=True, kw_only=True, slots=True)
class Git:
    """Runs git in a private folder; `start` creates the repository. `end`: the `time.monotonic` limit."""

    folder: Path
    settings: IndexSettings = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)
    end: float = field(default_factory=lambda: time.monotonic() + SECONDS)

    def start(self) -> None:
        """Make the empty repository.

        :raises ToolMissing: git is not installed.
        """
        if shutil.which("git", path=self.environ.get("PATH")) is None:
            raise ToolMissing(
                "git: command not found", hint="install git, which fetches packages from git repositories"
            )
        home = self.environ.get("HOME", "")
        netrc = Path(self.environ.get("NETRC") or f"{home}/.netrc")
        if netrc.is_file():
            (self.folder / ".netrc").symlink_to(netrc.absolute())
        self.run("init", "--quiet", "--bare", "--template=", "repository")

    def fetch(self, url: str, commit: str) -> None:
        """Fetch *commit* of the repository at *url*, without its history.

        :raises BuildFailed: *commit* cannot be fetched, or is not a commit.
        """
        self._demand_sound(url)
        options = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules")
        self.run("fetch", *options, "--", url, commit, url=url)
        found = self.run("rev-parse", "--verify", "FETCH_HEAD^{commit}", url=url).decode().strip()
        if found != commit:
            raise BuildFailed(
                f"{redact(url)}: {commit} is not a commit", hint=f"it is a tag; use its commit: {found[:40]}"
            )

    def references(self, url: str, *names: str) -> Mapping[str, str]:
        """Full name → commit (or tag object), for each of *names* that the repository at *url* has."""
        self._demand_sound(url)
        text = self.run("ls-remote", "--quiet", "--", url, *names, url=url).decode(errors="replace")
        rows = (line.partition("\t") for line in text.splitlines())
        return {name: found for found, _, name in rows if re.fullmatch(r"[0-9a-f]{40}", found)}

    def run(self, *words: str, url: str = "") -> bytes:
        """What `git *words` prints; see `output`."""
        with self.output(*words, url=url) as file:
            return file.read()

    @contextmanager
    def output(
        self, *words: str, url: str = "", stdin: bytes = b"", most: int | None = None
    ) -> Iterator[IO[bytes]]:
        """The file with what `git *words` prints.

        :param url: the URL of the repository, for messages.
        :param most: limits the bytes that it prints; None: to OUTPUT.
        :raises BuildFailed: git fails, or exceeds a limit.
        """
        protocols = ("protocol.http.allow=always",) if url.startswith("http:") else ()
        settings = (word for one in (*_SETTINGS, *protocols) for word in ("-c", one))
        # Processes that git starts inherit the limits. -v is in KiB, -f in blocks of 512 bytes.
        values = {"v": MEMORY >> 10, "f": 2 * DISK >> 9, "t": int(SECONDS), "c": 0}
        limits = "".join(f"ulimit -{name} {value} 2>/dev/null; " for name, value in values.items())
        given, printed, messages = (self.folder / name for name in ("stdin", "stdout", "stderr"))
        given.write_bytes(stdin)
        with given.open("rb") as source, printed.open("wb") as stdout, messages.open("wb") as stderr:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f'{limits}exec git "$@"', "git", *settings, *words],
                cwd=self.folder,
                env=self._environment(),
                stdin=source,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # no terminal; the whole process group is killed at the end
            )
            try:
                exceeded = self._watch(process, most or OUTPUT, url)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if exceeded:
            raise BuildFailed(
                f"{redact(url)}: git was stopped: the repository takes more than {exceeded}",
                hint="build a wheel elsewhere, and put it into the folder of the setting `wheels`",
            )
        if process.returncode:
            with messages.open("rb") as file:
                raise _failed(file.read(_STDERR).decode(errors="replace"), url)
        with printed.open("rb") as file:
            yield file

    def _environment(self) -> dict[str, str]:
        """All environment variables that git gets."""
        proxies = {name.lower(): text for name, text in self.environ.items() if name.lower() in _PROXIES}
        if self.settings.proxy:
            proxies |= dict.fromkeys(_PROXIES[:2], self.settings.proxy)
        bundle, certificate = self.settings.ca_bundle, self.settings.client_cert
        kind = "GIT_SSL_CAPATH" if bundle and Path(bundle).is_dir() else "GIT_SSL_CAINFO"
        return {
            **_VARIABLES,
            **proxies,
            **({kind: bundle} if bundle else {}),
            **({"GIT_SSL_CERT": certificate} if certificate else {}),
            "PATH": self.environ.get("PATH", os.defpath),
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder),
            "GIT_DIR": str(self.folder / "repository"),
        }

    def _watch(self, process: subprocess.Popen[bytes], most: int, url: str) -> str:
        """Wait for *process*, which may not pause for long; returns the exceeded limit, "" if none."""
        written, since = -1, time.monotonic()
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL)
                return self._too_much(most)
            if time.monotonic() > self.end:
                return f"{SECONDS / 60:.0f} minutes"
            if (now := tree_size(self.folder)[0]) != written:
                written, since = now, time.monotonic()
            if time.monotonic() > since + STALLED:
                raise _failed(f"timed out: no progress in {STALLED:g} seconds", url)
            if exceeded := self._too_much(most):
                return exceeded

    def _too_much(self, most: int) -> str:
        """The limit that the private folder or the command's output exceeds; "" if none."""
        printed = (self.folder / "stdout").stat().st_size
        if printed > most:
            return size(most)
        return size(DISK) if tree_size(self.folder)[0] - printed > DISK else ""

    def _demand_sound(self, url: str) -> None:
        """:raises BuildFailed: *url* is not allowed."""
        if why := url_fault(url):
            raise BuildFailed(f"{redact(url)}: {why}", hint="use the https:// URL of the repository")


def _failed(messages: str, url: str) -> BuildFailed:
    """The error with git's *messages*."""
    lines = [line.strip() for line in redact_text(messages).splitlines() if line.strip()]
    text = "\n".join(lines[-5:]).removeprefix("fatal: ") or "git failed"
    if _UNKNOWN.search(text):
        hint = "the repository does not have this commit: check the commit and the URL"
    elif _CERTIFICATE.search(text):
        hint = "set SSL_CERT_FILE, or pip's `cert`, to the CA bundle of this network"
    elif _DENIED.search(text):
        hint = "check the URL; if the repository requires credentials, put them into ~/.netrc"
    else:
        hint = "check the URL, the network and the proxy (HTTPS_PROXY), and run again"
    return BuildFailed(f"{redact(url)}: git: {text}", hint=hint)


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeEntry:
    """A file, a symbolic link or a submodule of a commit."""

    path: str  # relative to the root; bytes that are not UTF-8 are surrogates
    id: str  # of its blob; the commit of a submodule
    mode: str  # "100644"
    size: int  # bytes; 0 of a submodule

    @property
    def is_link(self) -> bool:
        """Whether its blob is the target of a symbolic link."""
        return self.mode == _LINK

    @property
    def is_submodule(self) -> bool:
        """Whether it is a commit of another repository."""
        return self.mode == _SUBMODULE

    def fault(self, why: str) -> ValueError:
        """An error that names this file."""
        return ValueError(f"{printable(self.path[:200])}: {why}")


def write_archive(git: Git, url: str, commit: str, folders: tuple[str, str], path: Path) -> None:
    """Fetch *commit* of the repository at *url*, and write it to *path* as a tar with one folder.

    :param folders: the name of that folder, and the path of the package in it ("" for the folder itself).
    :raises BuildFailed: the commit cannot be fetched, has no package there, exceeds a limit, has a submodule,
        a file of Git LFS in the package, or files that could not be checked out.
    """
    top, package = folders[0], f"{folders[1]}/" if folders[1] else ""
    git.fetch(url, commit)
    try:
        listing = git.run("ls-tree", "-r", "-z", "-l", "--full-tree", commit, url=url)
        found = sorted(entries(listing, FILES), key=lambda entry: entry.path)
        _demand_package(found, package)
        ids = "".join(f"{entry.id}\n" for entry in found).encode()
        # SIZE limits the content; each blob has a line before it.
        with (
            git.output("cat-file", "--batch", url=url, stdin=ids, most=2 * SIZE) as blobs,
            tarfile.open(path, "w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar,
        ):
            for entry in found:
                if blobs.readline(200).split() != [entry.id.encode(), b"blob", str(entry.size).encode()]:
                    raise entry.fault("git cannot read it")
                start = blobs.tell()
                if entry.path.startswith(package) and entry.size <= _POINTER_SIZE:
                    if blobs.read(entry.size).startswith(_POINTER):
                        raise entry.fault("a file of Git LFS, which is not supported")
                    blobs.seek(start)
                _add(tar, top, entry, blobs)
                blobs.seek(start + entry.size + 1)  # a line feed follows each blob
    except ValueError as error:
        raise BuildFailed(
            f"{redact(url)}: commit {commit[:12]}: {error}",
            hint="build a wheel elsewhere, and put it into the folder of the setting `wheels`",
        ) from None


def entries(listing: bytes, most: int) -> tuple[TreeEntry, ...]:
    """The entries in *listing*, the output of `git ls-tree -r -z -l`, which is not trusted.

    :raises ValueError: there are more than *most*, or a path is invalid, in `.git`, or listed twice.
    """
    rows = listing.split(b"\0")[:-1]
    if len(rows) > most:
        raise ValueError(f"more than {most} files")
    found = []
    for row in rows:
        match = _ENTRY.fullmatch(row)
        if match is None:
            raise ValueError(f"git listed {printable(row[:100].decode(errors='replace'))!r}")
        path = match["path"].decode("utf-8", "surrogateescape")
        if len(match["path"]) > _PATH or any(_is_wrong(part) for part in path.split("/")):
            raise ValueError(f"invalid path {printable(path[:200])!r}")
        size = int(match["size"]) if match["size"] != b"-" else 0
        found.append(TreeEntry(path=path, id=match["id"].decode(), mode=match["mode"].decode(), size=size))
    _demand_distinct(entry.path for entry in found)
    return tuple(found)


def leads_out(path: str, target: str) -> bool:
    """Whether the symbolic link at *path* with the text *target* leads out of the tree."""
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return target.startswith("/") or "\0" in target or found == ".." or found.startswith("../")


def _is_wrong(part: str) -> bool:
    return part in ("", ".", "..") or part.lower() == ".git"


def _demand_distinct(paths: Iterable[str]) -> None:
    """:raises ValueError: one of *paths* occurs twice, or is both a file and a folder."""
    files: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        if path in files:
            raise ValueError(f"{printable(path[:200])}: listed twice")
        files.add(path)
        folder = posixpath.dirname(path)
        while folder and folder not in folders:
            folders.add(folder)
            folder = posixpath.dirname(folder)
    if both := sorted(files & folders):
        raise ValueError(f"{printable(both[0][:200])}: both a file and a folder")


def _demand_package(listed: Iterable[TreeEntry], package: str) -> None:
    """:raises ValueError: *listed* is too large, has a submodule, or no package in the folder *package*."""
    if sum(entry.size for entry in listed) > SIZE:
        raise ValueError(f"more than {SIZE >> 20} MiB")
    if not {f"{package}{name}" for name in _BUILDS} & {entry.path for entry in listed}:
        raise ValueError(
            "does not appear to be a Python project:"
            f" neither {package}pyproject.toml nor {package}setup.py found"
        )
    for entry in listed:
        if entry.is_submodule:
            raise entry.fault("a submodule, which is not supported")


def _add(tar: tarfile.TarFile, top: str, entry: TreeEntry, content: IO[bytes]) -> None:
    info = tarfile.TarInfo(f"{top}/{entry.path}")
    info.mtime = _TIME
    if entry.is_link:
        if entry.size > _TARGET:
            raise entry.fault("the target of the link is too long")
        info.linkname = content.read(entry.size).decode("utf-8", "surrogateescape")
        if leads_out(entry.path, info.linkname):
            raise entry.fault("a symbolic link that leads out of the repository")
        info.type, info.mode = tarfile.SYMTYPE, 0o777
        tar.addfile(info)
        return
    info.size, info.mode = entry.size, 0o755 if entry.mode == "100755" else 0o644
    tar.addfile(info, content)
