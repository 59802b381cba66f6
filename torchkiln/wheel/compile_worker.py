"""Compiles the Python sources on stdin to .pyc files on stdout, under the image's own Python.

It needs only the standard library of Python 3.10 or newer, and opens no file. The input is a path and a
source, repeated. The output is a path and a .pyc for each source, in the same order, then a hash of the
output. The .pyc of a source that does not compile is empty. The flags are those of `compileall
--invalidation-mode unchecked-hash`: such a .pyc contains no timestamp.
"""

import hashlib
import importlib.util
import marshal
import struct
import sys
import warnings

LENGTH = struct.Struct("<I")
NESTED = 1 << 20  # bytes; for a smaller source, MemoryError means too deep nesting, not lack of memory


def frame(data: bytes) -> bytes:
    return LENGTH.pack(len(data)) + data


def compiled(path: str, source: bytes) -> bytes:
    """The .pyc of *source* at *path*: magic, flags 1 (hash-based, unchecked), hash, code."""
    code = compile(source, path, "exec", dont_inherit=True)
    return (
        importlib.util.MAGIC_NUMBER
        + LENGTH.pack(1)
        + importlib.util.source_hash(source)
        + marshal.dumps(code)
    )


def main() -> None:
    warnings.simplefilter("ignore")  # invalid escapes in the sources are not errors
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
                raise MemoryError(f"{path} is too large to compile: {len(source)} bytes") from None
            code = b""
        for part in (frame(path.encode()), frame(code)):
            pack.write(part)
            total.update(part)
    pack.write(LENGTH.pack(0xFFFFFFFF) + total.digest())
    pack.flush()


if __name__ == "__main__":
    main()
