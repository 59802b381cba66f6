"""Put the static program micromamba into a wheel, so that a project can install it.

Usage: python wheel.py PROGRAM. The same program and Python version give the same bytes.
"""

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

VERSION = "2.9.0"
SHA256 = "366cd9cd8be14df1ab8ed50352a82111082a36686b2d389fdb79a92c3fafb3e3"  # of micromamba-linux-64
TAG = "py3-none-manylinux_2_17_x86_64"
INFO = f"micromamba-{VERSION}.dist-info"
SCRIPTS = f"micromamba-{VERSION}.data/scripts"
OTHER_NAME = b'#!/bin/sh\nexec /opt/venv/bin/micromamba "$@"\n'

program = Path(sys.argv[1]).read_bytes()
if (found := hashlib.sha256(program).hexdigest()) != SHA256:
    sys.exit(f"{sys.argv[1]}: checksum mismatch: sha256 {found}, expected {SHA256}")
files = {
    f"{SCRIPTS}/micromamba": program,
    f"{SCRIPTS}/conda": OTHER_NAME,
    f"{SCRIPTS}/mamba": OTHER_NAME,
    f"{INFO}/METADATA": f"Metadata-Version: 2.1\nName: micromamba\nVersion: {VERSION}\n".encode(),
    f"{INFO}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode(),
}
rows = [
    f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
    for path, data in files.items()
]
files[f"{INFO}/RECORD"] = "".join((*rows, f"{INFO}/RECORD,,\n")).encode()
out = Path(__file__).parent / "wheels" / f"micromamba-{VERSION}-{TAG}.whl"
out.parent.mkdir(exist_ok=True)
with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
    for path, data in files.items():
        entry = zipfile.ZipInfo(path)  # with the fixed date 1980-01-01
        entry.external_attr = (0o100755 if path.startswith(SCRIPTS) else 0o100644) << 16  # regular files
        archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
print(out)
