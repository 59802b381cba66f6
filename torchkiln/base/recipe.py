"""OS name → BaseRecipe: what a base is made of, as a frozen value. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

from torchkiln.model.operating_system import operating_system
from torchkiln.model.recipe import PREFIX, USER

EPOCH = 1_735_689_600
"""Seconds, 2025-01-01: no file of a base is younger. Constant, so that the day of the build does not show."""

_PACKAGES = (
    *("python3", "python3-venv", "python3-dev"),
    *("gcc", "g++", "libc6-dev"),
    *("openssh-server", "tini", "git", "tmux", "screen"),
    *("procps", "psmisc", "iproute2", "nano", "curl", "less", "ca-certificates", "tzdata"),
    *("bash-completion", "sudo"),
    "libnss-wrapper",  # names for a uid that /etc/passwd does not know
)

# Manuals and translations are a sixth of the base and nobody reads them in a container; licences stay.
# Debian's own slim images leave out the same.
_DPKG_OPTIONS = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
    "path-exclude=/usr/share/man/*",
)

# Run by sh with the new root as "$1", after the packages.
_MAKING = (
    # Empty, and made by the base's own Python: wheels are only added to it. It sees the system's packages, as
    # only then Python looks into a user's own site, where pip installs for who may not write to the venv.
    'chroot "$1" env PYTHONDONTWRITEBYTECODE=1'
    f" python3 -m venv --system-site-packages --without-pip {PREFIX}",
    # Whoever the container runs as works there, as in /tmp.
    'install -d -m 1777 "$1/workspace"',
    # Nobody logs in by a password, but the account is not locked: sshd turns locked ones away. No copy of
    # /etc/skel: its .bashrc would hide ours.
    f'chroot "$1" useradd --uid 1000 --user-group --shell /bin/bash --password "*" {USER}',
    f'install -d -m 0755 -o 1000 -g 1000 "$1/home/{USER}"',
    # Debian's greeting; ours comes from the shell.
    'rm -f "$1"/etc/update-motd.d/* && : >"$1/etc/motd"',
)

# After packages that are put on top of a base, before the cleaning.
ON_TOP = (
    # git-lfs enters itself there, its lines in another order each time.
    'cd "$1/etc" && [ ! -e gitconfig ]'
    " || { head -n 1 gitconfig; tail -n +2 gitconfig | sort; } >gitconfig.new && mv gitconfig.new gitconfig",
)

# After those, and after whatever else is installed on top of a base.
CLEANING = (
    # The build host's name and resolver; identities that every container must make for itself.
    'rm -f "$1/etc/resolv.conf" "$1/etc/hostname" "$1/etc/hosts" "$1/etc/machine-id" "$1"/etc/ssh/ssh_host_*',
    # Second copies that tools keep of files they changed.
    'rm -f "$1"/etc/passwd- "$1"/etc/group- "$1"/etc/shadow- "$1"/etc/gshadow- "$1"/etc/sub[ug]id-',
    'rm -f "$1"/var/lib/dpkg/*-old "$1"/var/cache/debconf/*-old "$1/var/cache/ldconfig/aux-cache"',
    # Logs: those that login programs expect stay, empty.
    'find "$1/var/log" -type f \\( -name "*.log" -o -name "*.xz" \\) -delete',
    'find "$1/var/log" -type f -exec truncate -s 0 {} +',
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseRecipe:
    """Everything that decides a base, but for the day's state of the archive."""

    os: str  # "debian12"
    suite: str  # "bookworm"
    components: tuple[str, ...]
    keyring: PurePosixPath  # on the build host
    keyring_package: str  # what brings it there
    python: str  # major.minor of the suite's interpreter
    packages: tuple[str, ...]
    dpkg_options: tuple[str, ...]
    hooks: tuple[str, ...]
    epoch: int

    @property
    def distribution(self) -> str:
        """Whose archive it is: "debian"."""
        return self.os.rstrip("0123456789.")

    def key(self) -> str:
        """64 hex digits that change when any field does."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True, default=str).encode()).hexdigest()


def recipe(os_name: str) -> BaseRecipe:
    """The recipe of *os_name*.

    :raises ConfigError: there is none.
    """
    system = operating_system(os_name)
    return BaseRecipe(
        os=system.name,
        suite=system.suite,
        components=system.components,
        keyring=system.keyring,
        keyring_package=system.keyring_package,
        python=system.python,
        packages=_PACKAGES,
        dpkg_options=_DPKG_OPTIONS,
        hooks=(*_MAKING, *CLEANING),
        epoch=EPOCH,
    )
