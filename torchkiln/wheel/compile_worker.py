"""Runs under the image's own Python: sources come in on stdin, .pyc files go out on stdout.

Standard library only, Python 3.10 and newer; it opens no file. In: frames of path and source. Out: as many
frames of path and .pyc in the same order, then a hash over all of them; a source that does not compile gives
an empty one. The flags are those of `compileall --invalidation-mode unchecked-hash`: such a .pyc carries no
time.
"""

import hashlib
import importlib.util
import marshal
import struct
import sys
import warnings

LENGTH = struct.Struct("<I")
NESTED = 1 << 20  # bytes: a smaller source has memory enough, so it is nested deeper than the parser goes


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
    pack = sys.stdout.buffer
    total = hashlib.sha256()
    while head := read(LENGTH.size):
        path = read(LENGTH.unpack(head)[0]).decode()
        source = read(LENGTH.unpack(read(LENGTH.size))[0])
        try:
            code = compiled(path, source)
        except (SyntaxError, ValueError, RecursionError, OverflowError):
            code = b""
        except MemoryError:
            if len(source) >= NESTED:
                raise MemoryError(f"{path} has {len(source)} bytes, too many to compile") from None
            code = b""
        for part in (frame(path.encode()), frame(code)):
            pack.write(part)
            total.update(part)
    pack.write(LENGTH.pack(0xFFFFFFFF) + total.digest())
    pack.flush()


if __name__ == "__main__":
    main()
