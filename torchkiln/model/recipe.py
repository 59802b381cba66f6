"""Defines the numbers and paths that decide an image's bytes. It imports no other module of torchkiln."""

from __future__ import annotations

from dataclasses import dataclass

RECIPE = 4  # increase it when the same lock results in other bytes; plan and image.json contain it
# Set it to RECIPE when the change can change results on GPUs: variables, the loader's files, files of wheels.
STACK_RECIPE = 3

DEVICE_CODE_RULE = 1  # increase it when the same wheel, cut for the same GPUs, results in other bytes

# Increase it when the same archive of a standalone Python, or the same wheel for it, results in other bytes.
PYTHON_RULE = 1

PREFIX = "/opt/venv"  # the virtual environment, first on PATH
USER = "user"  # the account, uid 1000, for people who do not work as root
WHEEL_EPOCH = 315532800  # mtime of every file from a wheel: 1980-01-01, the oldest date of the zip format
BIG_WHEEL = 20_000_000  # bytes; from this size on a wheel has its own layer
MAX_LAYER = 5_000_000_000  # bytes compressed; the limits of registries are 8 to 10 GB


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePython:
    """The Python for which the packages of a layer are installed.

    Packages are always in the folder of the base's environment, lib/python3.11. An image with another Python
    has a link to it, lib/python3.12. Layers do not use the link in paths: such a path would replace the link
    by a folder.
    """

    version: str  # full, "3.12.8"
    folder: str  # the version in the name of the folder, "3.11"
    platform: str = "linux/amd64"

    @classmethod
    def of_base(cls, version: str, platform: str = "linux/amd64") -> ImagePython:
        """The base's own Python, of *version* "3.11.2"."""
        return cls(version=version, folder=minor(version), platform=platform)

    @property
    def of_another(self) -> bool:
        """Whether it is a standalone Python, not the base's."""
        return self.folder != self.minor

    @property
    def minor(self) -> str:
        """`"3.12"` of `"3.12.8"`."""
        return minor(self.version)

    @property
    def site(self) -> str:
        """The folder of packages: `/opt/venv/lib/python3.11/site-packages`."""
        return f"{PREFIX}/lib/python{self.folder}/site-packages"


def minor(python: str) -> str:
    """`"3.11"` of `"3.11.2"`."""
    return ".".join(python.split(".")[:2])
