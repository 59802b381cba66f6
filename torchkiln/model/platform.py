"""Defines the platforms that images are built for, with the name that each tool uses.

`runtimes/sandbox.py`, `runtimes/enter.py` and `cli/bundle_run.py` also depend on the platform: they have
system call tables, or run without torchkiln. A new platform also needs its name in `data/matrix.schema.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    os: str  # OCI's: "linux"
    architecture: str  # OCI's and Debian's: "amd64"
    machine: str  # of uname, markers and wheel tags: "x86_64"
    cuda: str  # NVIDIA's: "x86_64", in "linux-x86_64" and "targets/x86_64-linux"
    loader: str  # the dynamic loader: "ld-linux-x86-64.so.2"
    cache_flags: int  # of its libraries in /etc/ld.so.cache
    cached: str  # the mark of its libraries in `ldconfig -p`: "libc6,x86-64"
    manylinux: Mapping[int, str] = field(hash=False)  # by minor of glibc 2: the legacy tags in PEP 600
    suffix: str = ""  # in tags, and of the folders of bases
    lacking: frozenset[str] = frozenset()  # packages of the default platform's bases that Debian lacks for it
    first_torch: str = "0"  # the first release with CUDA wheels for it on the default index

    @property
    def name(self) -> str:
        """Docker's name of the platform: ``linux/amd64``."""
        return f"{self.os}/{self.architecture}"

    @property
    def oci(self) -> dict[str, str]:
        """The fields of the platform in image configs and OCI indexes."""
        return {"architecture": self.architecture, "os": self.os}

    @property
    def multiarch(self) -> str:
        """Debian's name of the platform."""
        return f"{self.machine}-linux-gnu"

    @property
    def libraries(self) -> str:
        """Debian's folder of libraries."""
        return f"usr/lib/{self.multiarch}"

    def markers(self, python: str) -> dict[str, str]:
        """The values of environment markers (PEP 508) for CPython *python*, "3.11.2" or "3.11"."""
        release = python if python.count(".") > 1 else f"{python}.0"
        return {
            "implementation_name": "cpython",
            "implementation_version": release,
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": self.os.capitalize(),
            "platform_version": "",
            "python_full_version": release,
            "python_version": ".".join(release.split(".")[:2]),
            "sys_platform": self.os,
            "extra": "",
        }

    def wheel_tag(self, kind: str) -> str:
        """The tag for *kind*: ``manylinux_2_28_x86_64`` for "manylinux_2_28"."""
        return f"{kind}_{self.machine}"


LINUX_AMD64 = Platform(
    os="linux",
    architecture="amd64",
    machine="x86_64",
    cuda="x86_64",
    loader="ld-linux-x86-64.so.2",
    cache_flags=0x303,
    cached="libc6,x86-64",
    manylinux={17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"},
)
LINUX_ARM64 = Platform(
    os="linux",
    architecture="arm64",
    machine="aarch64",
    cuda="sbsa",
    loader="ld-linux-aarch64.so.1",
    cache_flags=0xA03,
    cached="libc6,AArch64",
    manylinux={17: "manylinux2014"},
    suffix="-arm64",
    lacking=frozenset({"libquadmath0"}),
    first_torch="2.11",
)
PLATFORMS: Mapping[str, Platform] = {platform.name: platform for platform in (LINUX_AMD64, LINUX_ARM64)}

DEFAULT_PLATFORM = LINUX_AMD64.name
"""The platform whose tags have no suffix, and which documents omit."""
