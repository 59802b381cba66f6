"""Writes dpkg's status file as dpkg does after installing packages, from the packages alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence

from torchkiln.base.plain_tree import DebPath, Tree, UnpackRules, open_deb
from torchkiln.model.lock import DebFile
from torchkiln.util.deb822 import INSTALLED

PATH = "var/lib/dpkg/status"
_ORDER = (  # of the fields
    "package essential protected status priority section installed-size origin maintainer bugs architecture"
    " multi-arch source version replaces provides depends pre-depends recommends suggests breaks conflicts"
    " enhances conffiles description"
)
_FIELD = re.compile(r"(?m)^(\S+?):.*\n(?:[ \t].*\n)*")


def dpkg_status(debs: Sequence[DebFile], path_of: DebPath, tree: Tree, rules: UnpackRules) -> bytes:
    """The status file of *debs*, whose files are in *tree* by *rules*."""
    ordered = sorted(debs, key=lambda deb: deb.name)
    return "".join(f"{_stanza(deb, path_of, tree, rules)}\n" for deb in ordered).encode()


def _stanza(deb: DebFile, path_of: DebPath, tree: Tree, rules: UnpackRules) -> str:
    with open_deb(path_of(deb), deb) as (control, _):
        text = control["control"].data.decode().rstrip("\n") + "\n"
        files = control["conffiles"].data.decode() if "conffiles" in control else ""
    fields = {found[1].lower(): found[0] for found in _FIELD.finditer(text)}
    fields["status"] = f"Status: {INSTALLED}\n"
    if conffiles := list(_conffiles(files.split(), tree, rules)):
        fields["conffiles"] = "".join(("Conffiles:\n", *conffiles))
    known = [fields.pop(name) for name in _ORDER.split() if name in fields]
    return "".join((*known, *fields.values()))


def _conffiles(paths: Sequence[str], tree: Tree, rules: UnpackRules) -> Iterator[str]:
    for path in paths:
        if node := tree.get(rules.placed(path.lstrip("/"))):
            digest = hashlib.md5(b"".join(node.pieces()), usedforsecurity=False).hexdigest()
            yield f" {path} {digest}\n"
