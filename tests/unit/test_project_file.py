"""torchkiln.lock.json, the lock of a project: it reads back as written, and is refused after a change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from tests.document_strategies import FEW, answer, json_bytes, mutated
from torchkiln.errors import Stale
from torchkiln.model.cell import Source
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedWheel
from torchkiln.model.project import BuiltFrom, Origin, ProjectLock
from torchkiln.projects.file import from_json, to_json

WHEEL = LockedWheel(
    name="datasets",
    version="4.0",
    filename="datasets-4.0-py3-none-any.whl",
    sha256="0" * 64,
    size=1,
    index=Source.DEFAULT,
)
LOCK = ProjectLock(
    name="trial",
    parent="2.7.1-cuda12.1-cudnn9-runtime",
    parent_lock=Digest("sha256:" + "1" * 64),
    as_of="2026-11-21",
    inputs=Digest("sha256:" + "2" * 64),
    requirements=("datasets",),
    wheels=(WHEEL,),
    removed=("datasets",),
)


def test_a_lock_is_read_as_it_was_written_and_not_after_a_change() -> None:
    fsspec = replace(WHEEL, name="fsspec", version="2026.2", filename="fsspec-2026.2-py3-none-any.whl")
    lock = replace(LOCK, wheels=(WHEEL, fsspec), removed=("fsspec",))
    data = to_json(lock)
    assert from_json(data) == lock

    def reason(**changes: Any) -> str:
        with pytest.raises(Stale) as caught:
            from_json(json.dumps({**json.loads(data), **changes}).encode())
        return caught.value.message

    assert "edited or merged incorrectly" in reason(requirements=["other"])
    assert "schema 2, not 1" in reason(schema=2)
    assert "unknown key" in reason(more=1)
    assert "no wheel replaces it" in reason(removed=["absent"])
    wheels = json.loads(data)["wheels"]
    assert "duplicate wheel" in reason(wheels=[wheels[0], *wheels])
    assert "sorted by name" in reason(wheels=wheels[::-1])
    torch = {**wheels[0], "name": "torch", "version": "2.7.1", "filename": "torch-2.7.1-py3-none-any.whl"}
    assert "torch is part of the image" in reason(wheels=[*wheels, torch])


def test_origins_are_those_of_the_wheels_that_no_index_has() -> None:
    own = replace(WHEEL, index=Source.PROJECT)
    path, url = Origin(name="datasets", path="wheels/x.whl"), Origin(name="datasets", url="https://x/x.whl")
    built = Origin(name="datasets", built=BuiltFrom(sdist="x-1.tar.gz", sha256="3" * 64, size=1))
    for origin in (path, url, built):
        lock = replace(LOCK, wheels=(own,), origins=(origin,))
        assert from_json(to_json(lock)) == lock
    for wheel, origins, why in (
        (own, (), "must list exactly the wheels that are not from an index"),
        (WHEEL, (path,), "must list exactly the wheels that are not from an index"),
        (own, (replace(path, name="other"),), "must list exactly the wheels that are not from an index"),
        (own, (replace(path, url=url.url),), "must have exactly one of path, url and built"),
        (own, (Origin(name="datasets"),), "must have exactly one of path, url and built"),
        (own, (replace(path, path="wheels/../../x.whl"),), "is not in the project's folder"),
        (own, (replace(path, path="/srv/x.whl"),), "path"),
        (own, (replace(url, url="file:///etc/passwd"),), "url"),
    ):
        with pytest.raises(Stale) as caught:
            from_json(to_json(replace(LOCK, wheels=(wheel,), origins=origins)))
        assert why in caught.value.message


@FEW
@given(mutated(json.loads(to_json(LOCK))))
def test_any_changed_lock_is_read_or_refused(document: Any) -> None:
    answer(lambda: from_json(json_bytes(document)))
