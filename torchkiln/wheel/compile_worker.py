"""Runs under the image's own Python: sources come in on stdin, .pyc files go out to a pack.

Standard library only, Python 3.10 and newer. In: frames of path and source. Out: frames of path and .pyc
in the same order, then a hash over all of them; a source that does not compile gives none. The flags are
those of `compileall --invalidation-mode unchecked-hash`: such a .pyc carries no time.
"""

import hashlib
import importlib.util
import marshal
import struct
import sys
import warnings

LENGTH = struct.Struct("<I")


def frame(data: bytes) -> bytes:
    return LENGTH.pack(len(data)) + data


def compiled(path: str, source: bytes) -> bytes:
    """The .pyc of *source* as if it lay at *path*: magic, flags 1 (hash-based, unchecked), hash, code."""
    code = compile(source, path, "exec", dont_inherit=True)
    return (
        importlib.util.MAGIC_NUMBER
        + LENGTH.pack(1)
        + importlib.util.source_hash(source)
        + marshal.dumps(code)
    )


def main() -> None:
    warnings.simplefilter("ignore")  # an invalid escape in somebody's source is not our news
    read = sys.stdin.buffer.read
    total = hashlib.sha256()
    with open(sys.argv[1], "wb") as pack:
        while head := read(LENGTH.size):
            path = read(LENGTH.unpack(head)[0]).decode()
            source = read(LENGTH.unpack(read(LENGTH.size))[0])
            try:
                code = compiled(path, source)
            except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
                continue
            for part in (frame(path.encode()), frame(code)):
                pack.write(part)
                total.update(part)
        pack.write(LENGTH.pack(0xFFFFFFFF) + total.digest())


if __name__ == "__main__":
    main()
