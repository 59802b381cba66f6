"""Hypothesis -> WheelSpecs that pip installs: every legal turn that a wheel can take, in small."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.wheels import File, Scheme, WheelSpec

# No separators, no control characters and no line ends, which RECORD, a text file, cannot carry.
_LETTERS = st.characters(
    exclude_categories=("Cc", "Cs", "Cn", "Zl", "Zp"), exclude_characters="/\\:", max_codepoint=0x1F600
)
_PLAIN = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
_MODULES = st.sampled_from(
    (b"", b"x = 1\n", b"def main():\n    return 0\n", b"# \xc3\xa9\n", b"syntax error(\n")
)
_CONTENTS = st.one_of(
    _MODULES,
    st.binary(max_size=300),
    st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=9), st.integers(1, 9000)),
)
_SCRIPTS = st.sampled_from(
    (
        b"#!python\nprint(1)\n",
        b"#!pythonw\nprint(1)\n",
        b"#!python -E\n",
        b"#!/bin/sh\nexit 0\n",
        b"\x7fELF",
        b"",
    )
)
_ROOT: tuple[Scheme, ...] = ("", "purelib", "platlib")


def _part(suffix: str) -> st.SearchStrategy[str]:
    """One part of a path. Files end in a dot and more, folders do not: so no file is in another's way."""
    text = st.one_of(_PLAIN, st.text(_LETTERS, min_size=1, max_size=12), st.just("n" * 200))
    return text.map(lambda found: "d" + found.replace(".", "_") + suffix).filter(
        lambda f: len(f.encode()) <= 240
    )


def paths(*, suffix: str) -> st.SearchStrategy[str]:
    """A path of one to four parts, some of it longer than 300 bytes; the file ends in *suffix*."""
    return st.builds(
        lambda folders, file: "/".join((*folders, file)), st.lists(_part(""), max_size=3), _part(suffix)
    )


@st.composite
def _files(draw: st.DrawFn) -> tuple[File, ...]:
    found: dict[tuple[str, str], File] = {}
    for number in range(draw(st.integers(1, 7))):
        scheme: Scheme = draw(st.sampled_from((*_ROOT, "headers", "scripts", "data")))
        suffix = draw(st.sampled_from((".py", ".so", ".txt", ".PY", ".dat")))
        if scheme == "scripts":
            path, data = f"script{number}{suffix}", draw(_SCRIPTS)
        else:
            # Each scheme in a folder of its own: two that meet would overwrite each other, even in pip.
            path, data = f"{scheme or 'root'}_/" + draw(paths(suffix=suffix)), draw(_CONTENTS)
        mode = draw(st.sampled_from((0o644, 0o755, 0o600, 0o664, 0o777, 0o444)))
        found[scheme, path] = File(path=path, data=data, scheme=scheme, mode=mode, stored=draw(st.booleans()))
    return tuple(found.values())


@st.composite
def wheel_specs(draw: st.DrawFn) -> WheelSpec:
    """Any wheel that pip installs without a word."""
    target = st.sampled_from(("root_.mod:main", "root_.mod:Main.run", "root_:main"))
    names = draw(
        st.lists(st.from_regex(r"[a-z][a-z0-9.-]{0,10}[a-z0-9]", fullmatch=True), max_size=4, unique=True)
    )
    points = tuple((f"run-{name}", draw(target)) for name in names)
    cut = draw(st.integers(0, len(points)))
    return WheelSpec(
        name=draw(st.from_regex(r"[A-Za-z][A-Za-z0-9]{1,5}([-_.][A-Za-z0-9]{1,4}){0,2}", fullmatch=True)),
        version=draw(st.sampled_from(("1.0", "2.7.1", "0.0.1.post1", "1.0+cu126"))),
        files=draw(_files()),
        console=points[:cut],
        gui=points[cut:],
        purelib=draw(st.booleans()),
        folders=draw(st.booleans()),
        streamed=draw(st.booleans()),
        zip64=draw(st.booleans()),
        shuffle=draw(st.none() | st.integers(0, 99)),
    )
