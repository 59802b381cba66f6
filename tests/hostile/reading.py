"""Read a layer as one of torchkiln's commands does. Run as a program, also print the peak memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torchkiln.errors import KilnError
from torchkiln.model.digest import Digest
from torchkiln.oci.opening import open_layer
from torchkiln.oci.read_tar import DAMAGED, apply_layer
from torchkiln.oci.unpack import LayerBlob, unpack
from torchkiln.oci.validate.layer import GZIP_TYPE, inspect_layer


def main() -> None:
    """Print the error message and the peak memory in MiB; sys.argv: how to read, the file, its diff_id."""
    _, how, name, diff_id = sys.argv
    message = refusal(how, Path(name), diff_id)
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    sys.stdout.write(json.dumps([message, int(peak.split()[1]) >> 10]))


def refusal(how: str, path: Path, diff_id: str) -> str:
    """The error message for the layer at *path*; empty if it is accepted."""
    try:
        if how == "unpack":
            unpack([LayerBlob(path=path, diff_id=Digest(diff_id))], path.with_name("root"))
        elif how == "inspect":
            return "; ".join(inspect_layer(path, GZIP_TYPE).faults)
        else:
            with open_layer(path) as stream:
                apply_layer({}, stream)
    except (KilnError, *DAMAGED) as error:
        return str(getattr(error, "message", error))
    return ""
