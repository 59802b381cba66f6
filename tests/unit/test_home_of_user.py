"""The home folder of a user in an image, found by uid in the image's /etc/passwd."""

from __future__ import annotations

import io

import pytest

from torchkiln.runtimes import enter

PASSWD = (
    "root:x:0:1000:root:/root:/bin/sh\nwork:x:1000:0:work:/home/work:/bin/sh\n"
    "short:x:7\nhomeless:x:8:0:five fields\nshelless:x:9:0:six fields:/srv\n"
)


@pytest.mark.parametrize(
    ("uid", "home"), [(0, "/root"), (1000, "/home/work"), (7, "/"), (8, "/"), (9, "/srv"), (5, "/")]
)
def test_it_is_found_by_the_uid(monkeypatch: pytest.MonkeyPatch, uid: int, home: str) -> None:
    monkeypatch.setattr("builtins.open", lambda _path: io.StringIO(PASSWD))
    assert enter._home(uid) == home


def test_an_image_without_passwd(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> io.StringIO:
        raise FileNotFoundError(path)

    monkeypatch.setattr("builtins.open", missing)
    assert enter._home(0) == "/"
