"""Decides whether OS packages add only system accounts and groups, without a login. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_FIELDS: Mapping[str, int] = {"etc/passwd": 7, "etc/shadow": 9, "etc/group": 4, "etc/gshadow": 4}
PATHS = frozenset(_FIELDS)
_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}\$?")
_ID = re.compile(r"[1-9][0-9]{2}")  # the ids that packages choose for system accounts
_OF_SYSTEM = 1000  # system accounts have lower ids
_NO_SHELL = frozenset({"/usr/sbin/nologin", "/sbin/nologin", "/bin/false", "/usr/bin/false", "/bin/sync"})
_LOCKED = re.compile(r"[!*]{1,2}|!\*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ids:
    """Ids to which files of packages may belong, besides those of root."""

    users: frozenset[int]  # of accounts that the packages add
    groups: frozenset[int]  # of the groups that the packages add, and of the system's groups


def account_faults(path: str, before: str, after: str) -> Iterator[str]:
    """Faults of *after*, the file *path*: it must be *before*, with system accounts appended."""
    old, new = _lines(before), _lines(after)
    if new[: len(old)] != old:
        yield "lines of the parent image are changed, removed or in another order"
        return
    names, ids = {line.partition(":")[0] for line in old}, _numbers(before)
    for line in new[len(old) :]:
        fields = line.split(":")
        if len(fields) != _FIELDS[path] or not line.isprintable() or not _NAME.fullmatch(fields[0]):
            yield f"invalid line: {line[:80]!r}"
            continue
        if fields[0] in names:
            yield f"the account {fields[0]} is listed twice"
        yield from (f"the account {fields[0]} {fault}" for fault in _faults(path, fields, ids))
        names.add(fields[0])
        ids |= _numbers(line)


def _faults(path: str, fields: list[str], ids: set[int]) -> Iterator[str]:
    """Why packages must not add the account with *fields*; *ids* are already in use."""
    if path in ("etc/passwd", "etc/group"):
        if fields[1] != "x":
            yield "has a password"
        if not _ID.fullmatch(fields[2]) or int(fields[2]) in ids:
            yield f"has the id {fields[2][:20]!r}, which is not a free id from 100 to 999"
    elif not _LOCKED.fullmatch(fields[1]):
        yield "has a password"
    if path == "etc/passwd" and fields[6] not in _NO_SHELL:
        yield f"has the shell {fields[6]!r}"
    members = {"etc/group": fields[3:], "etc/gshadow": fields[2:]}.get(path, [])
    if any(members):
        yield f"is a group with members: {':'.join(members)[:80]}"


def ids_of(before: Mapping[str, str], after: Mapping[str, str]) -> Ids:
    """The ids that files may have.

    :param before: the account files of the parent image, by path.
    :param after: those that the packages changed.
    """
    groups = _numbers(before.get("etc/group", "")) | _numbers(after.get("etc/group", ""))
    users = _numbers(after.get("etc/passwd", "")) - _numbers(before.get("etc/passwd", ""))
    return Ids(
        users=frozenset(number for number in users if number < _OF_SYSTEM),
        groups=frozenset(number for number in groups if number < _OF_SYSTEM),
    )


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _numbers(text: str) -> set[int]:
    """The ids in *text*: the third field of each line."""
    fields = (line.split(":") for line in _lines(text))
    found = (row[2] for row in fields if len(row) in (4, 7))
    return {int(number) for number in found if re.fullmatch(r"[0-9]{1,10}", number)}
