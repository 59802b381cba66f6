"""Hostile shapes of documents, of any size: long keys, deep, wide, long numbers and strings, repetitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def _counted(pattern: str, size: int) -> str:
    """*pattern* with the numbers from 0 on, joined."""
    return "".join(pattern % number for number in range(size // (len(pattern) + 2)))


# Values of JSON, TOML and YAML.
_VALUES: Mapping[str, Callable[[int], str]] = {
    "long number": lambda size: "9" * size,
    "long hexadecimal number": lambda size: "0x" + "f" * size,
    "long number with underscores": lambda size: "1_" * (size // 2) + "1",
    "long fraction": lambda size: "1." + "9" * size,
    "long exponent": lambda size: "1e" + "9" * size,
    "long time": lambda size: "1979-05-27T07:32:00." + "9" * size,
    "number in base 60": lambda size: "1:" * (size // 2) + "1",
    "long string": lambda size: '"' + "x" * size + '"',
    "digits in a string": lambda size: '"' + "9" * size + '"',
    "escapes": lambda size: '"' + "\\u00e9" * (size // 6) + '"',
    "half characters": lambda size: "[" + '"\\ud800",' * (size // 9) + "1]",
    "deep lists": lambda size: "[" * size,
    "closed deep lists": lambda size: "[" * (size // 2) + "]" * (size // 2),
    "deep mappings": lambda size: '{"a":' * (size // 5),
    "wide numbers": lambda size: "[" + "1," * (size // 2) + "1]",
    "wide lists": lambda size: "[" + "[]," * (size // 3) + "[]]",
    "wide mappings": lambda size: "[" + "{}," * (size // 3) + "{}]",
    "wide strings": lambda size: "[" + _counted('"%x",', size) + "1]",
    "quotes": lambda size: '"' * size,
    "not a number": lambda size: "[" + "NaN," * (size // 4) + "-Infinity]",
}
_KEYS: Mapping[str, Callable[[int], str]] = {  # for JSON
    "long key": lambda size: f'"{"k" * size}": 1',
    "wide keys": lambda size: '"zz": {' + _counted('"%x":0,', size) + '"x": 1}',
    "a key again and again": lambda size: '"a": 1, ' * (size // 8) + '"a": 1',
}
_LINES: Mapping[str, Callable[[int], str]] = {  # TOML and YAML ignore those that are not of their form
    "dotted key": lambda size: "a" + ".a" * (size // 2) + " = 1",
    "dotted key with strings and spaces": lambda size: '"a"' + " . 'a'" * (size // 6) + " = 1",
    "dotted header": lambda size: "[a" + ".a" * (size // 2) + "]",
    "dotted key in a table": lambda size: "zz = {a" + ".a" * (size // 2) + " = 1}",
    "dotted key behind strings": lambda size: "a = ['''x'''''', 'y\\'] #\"\nb" + ".a" * (size // 2) + " = 1",
    "dotted keys": lambda size: _counted("a%x" + ".b" * 15 + " = 1\n", size),
    "headers": lambda size: _counted("[a%x" + ".b" * 15 + "]\n", size),
    "tables": lambda size: _counted("[a%x]\n", size),
    "tables of a list": lambda size: "[[zz]]\n" * (size // 7),
    "long key": lambda size: "k" * size + " = 1",
    "wide keys": lambda size: _counted("k%x = 1\n", size),
    "wide keys of YAML": lambda size: _counted("k%x: 1\n", size),
    "items": lambda size: "- " * (size // 2),
    "questions": lambda size: "? " * (size // 2),
    "comments": lambda size: "#\n" * (size // 2),
    "strings in a comment": lambda size: "#" + _counted('"%x"', size),
    "line feeds": lambda size: "\n" * size,
    "continued lines": lambda size: "a \\\n" * (size // 4),
    "a line again and again": lambda size: "a\n" * (size // 2),
    "options": lambda size: "--prefer-binary\n" * (size // 16),
    "unknown options": lambda size: "--pre\n" * (size // 6),
    "included files": lambda size: "-r a.txt\n" * (size // 9),
    "hashes": lambda size: "a==1" + f" --hash=sha256:{'0' * 64}" * (size // 79),
    "versions": lambda size: "a==" + "9" * size,
    "specifiers": lambda size: ("a" + ">=1,<2," * 500 + "!=3\n") * (size // 3504),
    "markers": lambda size: ("a; " + "os_name=='x' or " * 200 + "os_name=='y'\n") * (size // 3215),
    "parentheses": lambda size: ("a; " + "(" * 99 + "os_name=='x'" + ")" * 99 + "\n") * (size // 214),
    "tags": lambda size: (
        "./a-1-" + "-".join([_counted("py%x.", min(size, 4000) // 4) + "py3"] * 3) + ".whl\n"
    ),
    "variables": lambda size: "${A}\n" * (size // 5),
    "fields": lambda size: _counted("A%x: b\n", size),
    "a field again and again": lambda size: "Requires-Dist: a\n" * (size // 17),
    "a folded field": lambda size: "Requires-Dist: a\n" + " b\n" * (size // 3),
    "a long version": lambda size: "Version: " + "9" * size + "\n",
    "links": lambda size: '<a href="x">x</a>' * (size // 17),
    "open tags": lambda size: "<a " * (size // 3),
    "attributes": lambda size: "<a " + _counted("b%x=c ", size) + ">x</a>",
    "open comments": lambda size: "<!--" * (size // 4),
    "scripts": lambda size: "<script>" * (size // 8),
    "tags of a wheel": lambda size: "Tag: " + "-".join([_counted("py%x.", min(size, 9000) // 3) + "py3"] * 3),
}


def shapes(form: str) -> tuple[str, ...]:
    """The names of all shapes of documents of *form*."""
    json = (*_VALUES, *_KEYS)
    return {"json": json, "page": json, "lines": (*_LINES,)}.get(form, (*_VALUES, *_LINES))


def shaped(form: str, sound: bytes, shape: str, size: int) -> bytes:
    """The document *sound* of *form* with a part of *shape*, which has about *size* bytes."""
    if form in ("json", "page"):
        part = f'"zz": {_VALUES[shape](size)}' if shape in _VALUES else _KEYS[shape](size)
        return sound.rstrip()[:-1] + f", {part}}}".encode()
    between = " = " if form == "toml" else ": "
    part = f"zz{between}{_VALUES[shape](size)}" if shape in _VALUES else _LINES[shape](size)
    return sound + f"{part}\n".encode() if form == "yaml" else f"{part}\n".encode() + sound
