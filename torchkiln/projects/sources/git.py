"""Runs git for repositories on other machines, with limits and without the user's settings.

Repositories are not trusted. Nothing is checked out: no hook, filter or submodule of a repository can start a
program. git reads no configuration, asks for no password, and connects by HTTPS only (to this machine also by
HTTP). It uses the user's proxy and certificates of the package index, and ~/.netrc.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from torchkiln.errors import BuildFailed, ToolMissing
from torchkiln.index.settings import IndexSettings, redact, redact_text
from torchkiln.projects.sources.by_commit import url_fault
from torchkiln.util.files import tree_size
from torchkiln.util.sizes import size

SECONDS = 600.0  # time limit for one package
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
    "http.lowSpeedLimit=100",  # bytes per second
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
                exceeded = self._watch(process, most or OUTPUT)
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

    def _watch(self, process: subprocess.Popen[bytes], most: int) -> str:
        """Wait for *process*; returns the limit that was exceeded, "" if none."""
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL)
                return self._too_much(most)
            if time.monotonic() > self.end:
                return f"{SECONDS / 60:.0f} minutes"
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
