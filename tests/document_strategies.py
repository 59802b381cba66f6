"""Hypothesis strategies for documents: any JSON value, and valid documents with one change."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import reduce
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from torchkiln.errors import KilnError, printable

_ODD = (
    *(
        "",
        "\0",
        "../../etc/passwd",
        "\x1b[31m",
        "a\nb",
        "ü",
        "\ud800",
        "sha256:" + "A" * 64,
        "sha256:" + "0" * 64,
    ),
    *("sha256:../../x", "default-index", "x.whl", "2.7.1", "runtime", "debian12", "pass", "1", "true"),
)
_NUMBERS = st.sampled_from(
    (-1, 0, 1, 2, 1 << 40, 1 << 63, 1 << 64, 10**30, 1e308, -0.0, 0.5, 1.0, float("inf"), float("nan"))
)
_DEEP: Any = reduce(lambda inner, _: [inner], range(100), 0)
SCALARS = st.none() | st.booleans() | _NUMBERS | st.sampled_from(_ODD) | st.text(max_size=8) | st.just(_DEEP)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """*document* with one node replaced, removed, duplicated, renamed or added."""
    changed = copy.deepcopy(document)
    owner, key = draw(st.sampled_from(list(places(changed))))
    match draw(st.sampled_from(("replace", "replace", "drop", "add", "double"))):
        case "replace":
            owner[key] = draw(VALUES)
        case "drop":
            del owner[key]
        case "add" if isinstance(owner, dict):
            owner[draw(st.text(max_size=5))] = draw(VALUES)
        case _ if isinstance(owner, list):
            owner.insert(key, copy.deepcopy(owner[key]))
        case _:
            owner[str(key) + "x"] = owner.pop(key)
    return changed


def places(value: Any) -> Any:
    """Yield (dict or list, key) for the nodes of *value*: for two items of each list, 40 of each mapping."""
    if isinstance(value, dict):
        items: Any = list(value.items())[:40]
    elif isinstance(value, list):
        items = list(enumerate(value))[:2]
    else:
        return
    for key, inner in items:
        yield value, key
        yield from places(inner)


@st.composite
def spoiled(draw: st.DrawFn, data: bytes) -> bytes:
    """*data* with a few bytes removed, inserted or changed."""
    at = draw(st.integers(0, len(data)))
    removed = draw(st.integers(0, 20))
    return (
        data[:at]
        + draw(st.binary(max_size=6) | st.sampled_from((b'"', b"{", b"]", b"\\u", b"1e999")))
        + data[at + removed :]
    )


def json_bytes(document: Any) -> bytes:
    """*document* as JSON in UTF-8. With lone surrogates or infinite numbers, the result is not valid."""
    return json.dumps(document).encode("utf-8", "surrogatepass")


FEW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def answer(read: Callable[[], Any]) -> Any:
    """The result of *read*; None if it raises KilnError, whose message must be printable and not too long."""
    try:
        return read()
    except KilnError as error:
        error_text = error.message
    assert error_text == printable(error_text) != ""
    assert all(len(line) < 2000 for line in error_text.splitlines())
    return None
