"""The real base without what no test on an engine asks for: compilers, headers, git, Perl's modules.

A third of its bytes, for an engine unpacks it many times. The whole base is proved with the real set.
"""

from __future__ import annotations

import re
import shutil
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

from torchkiln.model.lock import LockedBase
from torchkiln.oci.compression import GZIP
from torchkiln.oci.encode import encode
from torchkiln.store.store import Store

_LIB = "usr/lib/x86_64-linux-gnu"
_LEFT_OUT = re.compile(
    rf"\./(usr/(lib/gcc|lib/git-core|lib/python3[^/]*/config-[^/]+|include|share/perl|share/perl5)/.+"
    rf"|usr/bin/(x86_64-linux-gnu-[^/]+|git[^/]*|scalar)|{_LIB}/[^/]+\.a"
    rf"|{_LIB}/(perl/.+|gconv/.+|lib[atlu]?san\.so[^/]*|libubsan\.so[^/]*))"
)


def slim_base(base: LockedBase, kept: Store, store: Store) -> LockedBase:
    """*base*, which *kept* has, slimmed, in *store*."""
    with tempfile.TemporaryDirectory() as folder:
        tar, blob = Path(folder, "base.tar"), Path(folder, "base.tar.gz")
        with (
            GZIP.open(kept.blob(base.digest)) as stream,
            tarfile.open(fileobj=stream, mode="r|") as whole,
            tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as slimmed,
        ):
            for member in whole:
                if not _LEFT_OUT.fullmatch(member.name) and not _LEFT_OUT.fullmatch(member.linkname):
                    slimmed.addfile(member, whole.extractfile(member) if member.isfile() else None)
        encoded = encode(tar, blob)
        place = store.blob(encoded.digest)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(blob, place)
    return replace(
        base,
        digest=encoded.digest,
        diff_id=encoded.diff_id,
        size=encoded.size,
        unpacked=encoded.unpacked,
    )
