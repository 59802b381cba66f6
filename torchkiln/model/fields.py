"""Defines the constrained field types of documents, for JSON Schemas and their messages.

Values are checked when a document is read, not when code creates a data class.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta

from torchkiln.model.digest import Digest

Sha256Digest = Annotated[
    Digest, Meta(pattern=r"^sha256:[0-9a-f]{64}$", description="sha256: and 64 lower-case hex digits")
]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$", description="a sha256 of 64 lower-case hex digits")]
Bytes = Annotated[int, Meta(ge=1, le=1 << 40, description="bytes")]
Epoch = Annotated[int, Meta(ge=0, le=253402300799, description="seconds since 1970")]
Date = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description='a date, "2026-11-21"')]
Version = Annotated[
    str, Meta(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+!]{0,99}$", description='a version, "2.7.1+cu126"')
]
Driver = Annotated[str, Meta(pattern=r"^[0-9.]{1,40}$", description='a driver, "525.60.13"')]
LibraryVersion = Annotated[
    str, Meta(pattern=r"^[0-9.]{1,40}$", description='a version of cuDNN or NCCL, "9.5.1.17"')
]
Word = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.]{0,39}$", description='a name, "debian12"')]
OsName = Annotated[
    str,
    Meta(
        pattern=r"^(python3[0-9]{1,2}-)?[a-z0-9][a-z0-9.]{0,39}$",
        description='a system, "debian12" or "python312-debian12"',
    ),
]
PlatformName = Annotated[str, Meta(pattern=r"^linux/(amd64|arm64)$", description='a platform, "linux/arm64"')]
Line = Annotated[
    str,
    Meta(
        pattern=r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*$",
        max_length=2000,
        description="a line of text without control characters",
    ),
]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$",
        max_length=200,
        description='a normalized package name, "nvidia-cublas-cu12"',
    ),
]
FileName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+!-]*$", max_length=250, description="the name of a file")
]
FactId = Annotated[
    str,
    Meta(
        pattern=r"^(traps|rules)\.[a-z0-9][a-z0-9.-]{0,60}$", description='the id of a fact, "rules.no-ptx"'
    ),
]
Architecture = Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,40}$", description='an architecture, "sm_90"')]
Capability = Annotated[str, Meta(pattern=r"^[0-9]{1,2}\.[0-9]$", description='a compute capability, "9.0"')]
OsTools = Annotated[
    str,
    Meta(pattern=r"^devel(-gcc[0-9]{1,2})?$", description='the OS\'s tools of a devel image, "devel-gcc11"'),
]
Folder = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]+(/[a-z0-9]+){0,4}$",
        max_length=100,
        description='a folder below site-packages, "nvidia/cu13"',
    ),
]
Program = Annotated[str, Meta(pattern=r"^[a-z0-9_+.]+$", max_length=60, description='a program, "nvcc"')]
Library = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]+(/[a-z0-9_]+){1,4}/lib[A-Za-z0-9_]+\.(a|so\.[0-9]+(\.[0-9]+)?)$",
        max_length=200,
        description='a library below site-packages, "nvidia/cu13/lib/libcudart.so.13"',
    ),
]
WheelLibrary = Annotated[
    str,
    Meta(
        pattern=r"^([A-Za-z0-9_]+/)+lib/[A-Za-z0-9_-]+\.so(\.[0-9]+)*$",
        max_length=200,
        description='a library in a wheel, "nvidia/cublas/lib/libcublas.so.12"',
    ),
]
ToolkitRelease = Annotated[
    str,
    Meta(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){2}$", description='a release of NVIDIA\'s toolkit, "12.1.1"'),
]
ToolkitPart = Annotated[
    str, Meta(pattern=r"^[a-z0-9_]{1,60}$", description='a component of NVIDIA\'s toolkit, "cuda_nvcc"')
]
ArchivePath = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9_]+/[a-z0-9_-]+/[A-Za-z0-9_.-]+\.tar\.xz$",
        max_length=250,
        description='a path in NVIDIA\'s layout, "cuda_nvcc/linux-x86_64/cuda_nvcc-12.1.tar.xz"',
    ),
]
#: PyPI's paths, which mirrors keep below a prefix of their own, and PyTorch's.
INDEX_PATH = (
    r"/(packages/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{60}|whl(/[a-z0-9][a-z0-9.]*)?)"
    r"/[A-Za-z0-9][A-Za-z0-9._~%+-]*"
)
IndexPath = Annotated[
    str,
    Meta(
        pattern=f"^{INDEX_PATH}$", max_length=500, description='a path on a package index, "/whl/cu126/x.whl"'
    ),
]
#: The path of something in a folder, relative to it; `.` and `..` are refused elsewhere.
INSIDE = r"^[^/\u0000-\u001f\u007f-\u009f]+(/[^/\u0000-\u001f\u007f-\u009f]+)*$"
DebName = Annotated[
    str, Meta(pattern=r"^[a-z0-9][a-z0-9+.-]{0,200}$", description="the name of a Debian package")
]
DebVersion = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9.+:~-]{1,200}$", description="the version of a Debian package")
]
DebArchitecture = Annotated[
    str, Meta(pattern=r"^[a-z0-9-]{1,40}$", description='the architecture of a Debian package, "amd64"')
]
DebSource = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9+.-]{0,200}( \([A-Za-z0-9.+:~-]{1,200}\))?$",
        description='the source of a Debian package, "gcc-12 (12.2.0-14)"',
    ),
]
DebPath = Annotated[
    str,
    Meta(
        pattern=r"^([A-Za-z0-9][A-Za-z0-9.+~:%_-]*/)+[A-Za-z0-9][A-Za-z0-9.+~:%_-]*\.deb$",
        max_length=500,
        description='a path below the address of an archive, "pool/main/t/tini/tini_0.19.0-1_amd64.deb"',
    ),
]
# apt-get removes a package if its name or version ends in "-" on the command line.
AptPackage = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9+.-]{0,98}[a-z0-9+](=[0-9A-Za-z]([A-Za-z0-9.+:~-]{0,98}[A-Za-z0-9.~])?)?$",
        description='the name of an OS package, "ffmpeg", or with a version, "git-lfs=3.3.0-1"',
    ),
]

T = TypeVar("T")
Some = Annotated[tuple[T, ...], Meta(max_length=200)]
