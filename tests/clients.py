"""Clients of a container: a browser (Debian's Chromium), and OpenSSH with all kinds of sessions."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page, Playwright, Request, expect, sync_playwright

from tests.needs import give_up
from tests.workplace import Container

TIMEOUT = 300_000  # milliseconds
ABORTED = "net::ERR_NETWORK_CHANGED"
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-proxy-server"]


@contextmanager
def browsing() -> Iterator[tuple[Page, set[str]]]:
    """An empty page of a browser with a new profile, and the set of hosts that it connects to."""
    program = shutil.which("chromium")
    if not program:
        give_up("chromium is not installed: apt-get install chromium")
    hosts: set[str] = set()
    with _playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT)
        page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname or "127.0.0.1"))
        yield page, hosts
        browser.close()


_running: list[Playwright] = []


@contextmanager
def _playwright() -> Iterator[Playwright]:
    """The running Playwright of this process, or a new one, because a process can run only one."""
    if _running:
        yield _running[0]
        return
    with sync_playwright() as started:
        _running.append(started)
        try:
            yield started
        finally:
            _running.clear()


def address(container: Container) -> str:
    """The URL in the container's log, with the published port."""
    found = container.says(r"(http://127\.0\.0\.1:)8888(/lab\?token=\w+)")
    return f"{found[1]}{container.port(8888)}{found[2]}"


def load(page: Page, url: str) -> None:
    """Load *url*, again if a request fails with ERR_NETWORK_CHANGED; at most 20 times.

    Chromium aborts requests when a network interface appears, and each container of another test adds one.
    """
    aborted: list[Request] = []
    page.on("requestfailed", lambda request: aborted.append(request) if request.failure == ABORTED else None)
    dialog = page.get_by_role("dialog", name="Error Loading Theme")
    page.add_locator_handler(dialog, lambda: page.reload())
    for _ in range(20):
        aborted.clear()
        page.goto(url, wait_until="networkidle")
        if not aborted:
            return
    raise AssertionError(f"{len(aborted)} requests failed: {aborted[0].url}: {ABORTED}")


def output(container: Container, page: Page, code: str) -> str:
    """The output of *code* in the first cell of a new notebook."""
    load(page, address(container))
    page.get_by_title("Python 3 (ipykernel)").first.click()
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible(timeout=TIMEOUT)
    cell = page.locator(".jp-Notebook .jp-InputArea-editor .cm-content").first
    cell.click()
    page.keyboard.insert_text(code)
    page.keyboard.press("Shift+Enter")
    found = page.locator(".jp-OutputArea-output").first
    expect(found).to_have_text(re.compile(r"\S"), timeout=TIMEOUT)
    return (found.text_content() or "").strip()


READY = r"Server listening on 0\.0\.0\.0 port (\d+)"


@dataclass(frozen=True, kw_only=True)
class Client:
    """A key, a container, and the port on which its sshd listens."""

    container: Container
    key: Path
    inside: int = 22

    def options(self, **more: str) -> list[str]:
        """Options for ssh, scp and sftp, without this machine's user configuration."""
        defaults = {
            "IdentityFile": str(self.key),
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "BatchMode": "yes",
            "Port": str(self.container.port(self.inside)),
        }
        words = (word for name, value in (defaults | more).items() for word in ("-o", f"{name}={value}"))
        return ["-F", "none", *words]

    def ssh(
        self, *command: str, text: str = "", terminal: bool = False, user: str = "root", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one session until it ends."""
        flags = ["-tt"] if terminal else []
        argv = ["ssh", *flags, *self.options(**more), f"{user}@127.0.0.1", *command]
        return subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=600)


def sessions(look: str) -> Mapping[str, tuple[list[str], str, bool]]:
    """Kinds of SSH sessions that run *look*. Values: remote command, stdin, whether to request a terminal."""
    typed = f"stty -echo; PS1=; {look}; exit\n"
    return {
        "login": ([], typed, True),
        "interactive": (["bash", "-i"], typed, True),
        "command": ([look], "", False),
        "a shell that a tool starts": (["sh"], look + "\n", False),
        "a bash that a tool starts": (["bash", "--noprofile", "--norc"], look + "\n", False),
    }
