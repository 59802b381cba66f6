"""Commits are fetched by the real git from a server on this machine, and packed without a checkout."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import ssl
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from tests.checkouts import git as run_git
from tests.servers.certificate import self_signed
from tests.servers.git_server import GitServer, needs_git_server
from tests.unit.test_deadlines import STALLS, Stalling
from torchkiln.errors import BuildFailed
from torchkiln.index.settings import index_settings
from torchkiln.projects.sources import git as fetching
from torchkiln.projects.sources.git import Git, write_archive

SETUP = {"setup.py": "x = 1\n"}
DIGEST = "4df8363614d37c2e293f5917ce71090ed8e80ce420f57b95076fb90f753e9020"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


class Scene:
    """A server, and a private folder for git."""

    def __init__(self, folder: Path, server: GitServer) -> None:
        self.folder, self.server, self.number = folder, server, 0
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(folder / "home")}
        (folder / "home").mkdir()

    def git(self, ca_bundle: Path | None = None) -> Git:
        self.number += 1
        folder = self.folder / f"git-{self.number}"
        folder.mkdir()
        variables = {"SSL_CERT_FILE": str(ca_bundle)} if ca_bundle else {}
        found = Git(folder=folder, settings=index_settings(variables, pip_config=""), environ=self.environ)
        found.start()
        return found

    def bytes(self, commit: str, name: str = "tool", folder: str = "") -> bytes:
        path = self.folder / "out.tar"
        write_archive(self.git(), self.server.url(name), commit, ("tool", folder), path)
        return path.read_bytes()

    def tar(self, commit: str, name: str = "tool", folder: str = "") -> tarfile.TarFile:
        return tarfile.open(fileobj=BytesIO(self.bytes(commit, name, folder)))

    def refused(self, commit: str, name: str = "tool", folder: str = "") -> BuildFailed:
        with pytest.raises(BuildFailed) as caught:
            self.tar(commit, name, folder)
        assert caught.value.message.startswith("http://127.0.0.1")
        return caught.value


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    needs_git_server()
    (tmp_path / "server").mkdir()
    with GitServer(tmp_path / "server") as server:
        yield Scene(tmp_path, server)


def read(tar: tarfile.TarFile, path: str) -> bytes:
    file = tar.extractfile(path)
    assert file is not None
    return file.read()


def test_a_commit_as_a_tar(scene: Scene) -> None:
    """The tar has the files as committed; git attributes have no effect, and its bytes are always equal."""
    server = scene.server
    script, link = server_blob(server, b"#!/bin/sh\n"), server_blob(server, b"../setup.py")
    commit = server.commit(
        "tool",
        {**SETUP, ".gitattributes": "* text eol=crlf\nd/* export-ignore filter=evil\n", "d/é.txt": "a\nb\n"},
        f"100755 {script}\trun.sh",
        f"120000 {link}\td/link",
    )
    server.commit("tool", {**SETUP, "later": ""})
    tar = scene.tar(commit)

    assert [(one.name, one.mode, one.type, one.linkname) for one in tar.getmembers()] == [
        ("tool/.gitattributes", 0o644, tarfile.REGTYPE, ""),
        ("tool/d/link", 0o777, tarfile.SYMTYPE, "../setup.py"),
        ("tool/d/é.txt", 0o644, tarfile.REGTYPE, ""),
        ("tool/run.sh", 0o755, tarfile.REGTYPE, ""),
        ("tool/setup.py", 0o644, tarfile.REGTYPE, ""),
    ]
    assert read(tar, "tool/d/é.txt") == b"a\nb\n"
    # Locks contain this hash, so all versions of git, Python and torchkiln must produce the same tar.
    assert hashlib.sha256(scene.bytes(commit)).hexdigest() == DIGEST


def server_blob(server: GitServer, data: bytes) -> str:
    server.commit("tool", {})
    return server.blob("tool", data)


def test_only_the_commit_is_fetched(scene: Scene) -> None:
    first = scene.server.commit("tool", {**SETUP, "secret": "old"})
    second = scene.server.commit("tool", SETUP)
    git = scene.git()
    git.fetch(scene.server.url("tool"), second)
    have = git.run("cat-file", "--batch-all-objects", "--batch-check").decode()
    assert second in have
    assert first not in have
    assert len(have.splitlines()) == 3


def test_a_branch_and_a_tag(scene: Scene) -> None:
    commit = scene.server.commit("tool", SETUP)
    run_git(scene.server.root / "tool.git", "tag", "-a", "-m", "a tag", "v1", commit)
    found = scene.git().references(
        scene.server.url("tool"), "HEAD", "refs/heads/main", "refs/tags/v1^{}", "x"
    )
    assert found == {"HEAD": commit, "refs/heads/main": commit, "refs/tags/v1^{}": commit}
    tag = run_git(scene.server.root / "tool.git", "rev-parse", "v1")
    refused = scene.refused(tag)
    assert f"{tag} is not a commit" in refused.message
    assert commit in refused.hint


@pytest.mark.parametrize("commit", ["--upload-pack=touch /tmp/pwned", "main:refs/heads/x"])
def test_a_commit_that_does_not_exist(scene: Scene, commit: str) -> None:
    scene.server.commit("tool", SETUP)
    assert scene.refused(commit).message


def test_the_messages_of_a_failed_fetch(scene: Scene) -> None:
    commit = scene.server.commit("tool", SETUP)
    assert "does not have this commit" in scene.refused("1" * 40).hint
    missing = scene.refused(commit, "nothing")
    assert "check the URL" in missing.hint
    assert scene.server.url("nothing") not in missing.message
    scene.server.login = ("me", "secret")
    refused = scene.refused(commit)
    assert "terminal prompts disabled" in refused.message
    assert "~/.netrc" in refused.hint
    assert scene.server.url("tool") not in refused.message


def test_logins_are_those_of_netrc(scene: Scene) -> None:
    commit = scene.server.commit("tool", SETUP)
    scene.server.login = ("me", "secret")
    (scene.folder / "home" / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    assert scene.tar(commit).getnames() == ["tool/setup.py"]
    (scene.folder / "home" / ".netrc").rename(scene.folder / "elsewhere")
    scene.environ["NETRC"] = str(scene.folder / "elsewhere")
    assert scene.tar(commit).getnames() == ["tool/setup.py"]


def test_the_users_settings_are_not_used(scene: Scene) -> None:
    """Git's configuration, variables, credential helpers and templates of the user have no effect."""
    commit = scene.server.commit("tool", SETUP)
    scene.server.login = ("me", "secret")
    ran, helper = scene.folder / "ran", scene.folder / "helper"
    helper.write_text(f"#!/bin/sh\ntouch {ran}\necho username=me\necho password=secret\n")
    helper.chmod(0o755)
    (scene.folder / "home" / ".gitconfig").write_text(f"[credential]\n\thelper = {helper}\n")
    scene.environ |= {
        "GIT_ASKPASS": str(helper),
        "SSH_ASKPASS": str(helper),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "credential.helper",
        "GIT_CONFIG_VALUE_0": str(helper),
        "GIT_DIR": str(scene.server.root / "tool.git"),
        "GIT_PROXY_COMMAND": str(helper),
    }
    assert "terminal prompts disabled" in scene.refused(commit).message
    assert not ran.exists()


def test_redirects_lead_to_no_other_protocol(scene: Scene) -> None:
    commit = scene.server.commit("tool", SETUP)
    scene.server.moved["old.git"] = scene.server.url("tool")
    assert scene.tar(commit, "old").getnames() == ["tool/setup.py"]
    scene.server.moved["old.git"] = f"file://{scene.server.root}/tool.git"
    assert scene.refused(commit, "old").message


def test_https(scene: Scene) -> None:
    """The certificates of the index settings are used; a redirect to http is not followed."""
    bundle = self_signed(scene.folder / "server.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(bundle)
    commit = scene.server.commit("tool", SETUP)
    with GitServer(scene.server.root, context) as secure:
        git = scene.git(bundle)
        git.fetch(secure.url("tool"), commit)
        with pytest.raises(BuildFailed, match="certificate") as caught:
            scene.git().fetch(secure.url("tool"), commit)
        assert "SSL_CERT_FILE" in caught.value.hint
        secure.moved["old.git"] = scene.server.url("tool")
        scene.server.requests.clear()
        with pytest.raises(BuildFailed, match=r"old\.git: git: "):
            git.fetch(secure.url("old"), commit)
    assert scene.server.requests == []


@pytest.mark.parametrize("url", ["ext::touch pwned", "file:///srv/x"])
def test_other_protocols_are_refused_twice(scene: Scene, url: str) -> None:
    """torchkiln's check of the URL refuses them, and git refuses them, too."""
    git = scene.git()
    with pytest.raises(BuildFailed, match="must begin with https://"):
        git.fetch(url, "1" * 40)
    with pytest.raises(BuildFailed, match="must begin with https://"):
        git.references(url, "HEAD")
    with pytest.raises(BuildFailed) as caught:
        git.run("ls-remote", "--", url)
    assert re.search("not allowed|not found|not supported", caught.value.message)
    assert not list(git.folder.glob("pwned"))


@pytest.mark.parametrize("modules", ["", '[submodule "x"]\n\tpath = ext/lib\n\turl = ext::sh -c touch\n'])
def test_submodules_are_refused(scene: Scene, modules: str) -> None:
    """None is fetched, whatever .gitmodules says."""
    lib = scene.server.commit("lib", {"lib.txt": ""})
    files = {**SETUP, **({".gitmodules": modules} if modules else {})}
    commit = scene.server.commit("tool", files, f"160000 {lib}\text/lib")
    scene.server.requests.clear()
    refused = scene.refused(commit)
    assert f"commit {commit[:12]}: ext/lib: a submodule, which is not supported" in refused.message
    assert "build a wheel elsewhere" in refused.hint
    assert not [request for request in scene.server.requests if "lib" in request]


def test_hostile_trees(scene: Scene) -> None:
    """git would not check out these trees, or would write files outside of the checkout."""
    server = scene.server
    server.commit("tool", SETUP)
    setup, evil = server.blob("tool", b"x = 1\n"), server.blob("tool", b"evil")
    up = server.tree("tool", ("100644", b"evil", evil))
    for entry, why in (
        (("40000", b"..", up), "invalid path '../evil'"),
        (("40000", b".git", up), "invalid path '.git/evil'"),
        (("120000", b"link", server.blob("tool", b"/etc/passwd")), "link: a symbolic link that leads out"),
        (("120000", b"link", server.blob("tool", b"../../x")), "link: a symbolic link that leads out"),
        (("120000", b"link", server.blob("tool", b"a" * 5000)), "link: the target of the link is too long"),
        (("100644", b"setup.py", evil), "setup.py: listed twice"),
    ):
        tree = server.tree("tool", entry, ("100644", b"setup.py", setup))
        assert why in scene.refused(server.put_tree("tool", tree)).message


def test_a_tree_of_trees_of_trees(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes of nested trees are expanded to 10^10 files."""
    monkeypatch.setattr(fetching, "OUTPUT", 1 << 20)
    server = scene.server
    server.commit("tool", SETUP)
    one, mode = server.blob("tool", b""), "100644"
    for _ in range(10):
        one = server.tree("tool", *((mode, b"%d" % number, one) for number in range(10)))
        mode = "40000"
    assert "takes more than 1.0 MB" in scene.refused(server.put_tree("tool", one)).message


def test_limits(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = scene.server.commit("tool", {**SETUP, "noise": os.urandom(3 << 20)})
    with monkeypatch.context() as patch:
        patch.setattr(fetching, "SIZE", 1 << 20)
        assert "more than 1 MiB" in scene.refused(commit).message
        patch.setattr(fetching, "FILES", 1)
        assert "more than 1 files" in scene.refused(commit).message
    monkeypatch.setattr(fetching, "DISK", 1 << 20)
    assert "the repository takes more than 1.0 MB" in scene.refused(commit).message


def test_limits_of_each_process(scene: Scene) -> None:
    """The limits are inherited by the processes that git starts."""
    git = scene.git()
    for option, limit in (("v", fetching.MEMORY >> 10), ("f", 2 * fetching.DISK >> 9), ("c", 0)):
        assert git.run("-c", f"alias.limit=!ulimit -{option}", "limit").decode().strip() == str(limit)


def test_a_server_without_progress(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """git limits the speed of a transfer, but not the time of a TLS handshake."""
    monkeypatch.setattr(fetching, "STALLED", 1.0)
    with Stalling(*STALLS["TLS: the server's hello byte by byte"]) as server:
        for ask in (lambda git, url: git.fetch(url, "1" * 40), lambda git, url: git.references(url, "x")):
            with pytest.raises(BuildFailed, match=r"git: timed out: no progress in 1 seconds$") as caught:
                ask(scene.git(), f"https://{server.host}/x")
            assert server.host in caught.value.message


def test_a_server_that_does_not_answer(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        git = replace(scene.git(), end=time.monotonic())
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(BuildFailed, match="takes more than 10 minutes"):
            git.fetch(url, "1" * 40)
        for _ in range(1000):  # git's child processes were killed, too
            if not _commands_with(url):
                return
            time.sleep(0.01)
        pytest.fail("a child process of git still runs")


def _commands_with(word: str) -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes())
    return [command for command in found if word.encode() in command]


def test_where_the_package_is(scene: Scene) -> None:
    commit = scene.server.commit("tool", {"pkg/pyproject.toml": "", "README": ""})
    assert scene.tar(commit, folder="pkg").getnames() == ["tool/README", "tool/pkg/pyproject.toml"]
    assert (
        "not appear to be a Python project: neither pyproject.toml nor setup.py found"
        in scene.refused(commit).message
    )
    assert "neither no/pyproject.toml nor no/setup.py found" in scene.refused(commit, folder="no").message


def test_files_of_git_lfs_are_refused(scene: Scene) -> None:
    """Only their pointers are in git. Outside of the package's folder they do not matter."""
    commit = scene.server.commit("tool", {**SETUP, "pkg/setup.py": "", "data/a.bin": POINTER})
    refused = scene.refused(commit)
    assert f"commit {commit[:12]}: data/a.bin: a file of Git LFS, which is not supported" in refused.message
    assert "build a wheel elsewhere" in refused.hint
    assert read(scene.tar(commit, folder="pkg"), "tool/data/a.bin") == POINTER.encode()
