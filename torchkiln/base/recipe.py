"""Defines the recipe of a base, and reads mirrors and keyring from the environment. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import PurePosixPath

from torchkiln.errors import ConfigError
from torchkiln.matrix.mirrors import preset_of
from torchkiln.model.operating_system import base_name, operating_system
from torchkiln.model.recipe import PREFIX, USER
from torchkiln.model.untrusted import declared
from torchkiln.vault import VARIABLE

EPOCH = 1_735_689_600
"""2025-01-01 in seconds: no file of a base has a later time. Constant, so that bases are reproducible."""

_PACKAGES = (
    *("python3", "python3-venv", "python3-dev", "gcc", "g++", "libc6-dev"),
    *("openssh-server", "tini", "git", "tmux", "screen", "procps", "psmisc", "iproute2", "htop", "nano"),
    *("vim-tiny", "less", "make", "ca-certificates", "tzdata", "curl", "wget", "rsync", "unzip", "bzip2"),
    *("xz-utils", "bash-completion", "sudo"),
    "libnss-wrapper",  # names for a uid that is not in /etc/passwd
)

# Manuals and translations are a sixth of the base and not needed in a container; licences are kept.
# Debian's slim images exclude the same files.
_DPKG_OPTIONS = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
    "path-exclude=/usr/share/man/*",
)

# Run by sh with the new root as "$1", after the packages are installed.
_MAKING = (
    # The environment is empty and created by the base's Python; builds only add wheels. It has the system
    # site packages, because only then Python uses the user site, where pip installs if it cannot write to the
    # venv.
    'chroot "$1" env PYTHONDONTWRITEBYTECODE=1'
    f" python3 -m venv --system-site-packages --without-pip {PREFIX}",
    # Writable for every user of the container, like /tmp.
    'install -d -m 1777 "$1/workspace"',
    # No password login, but not locked: sshd rejects locked accounts. /etc/skel is not copied: its .bashrc
    # would override that of the image.
    f'chroot "$1" useradd --uid 1000 --user-group --shell /bin/bash --password "*" {USER}',
    f'install -d -m 0755 -o 1000 -g 1000 "$1/home/{USER}"',
    # A mounted repository can belong to another uid than the user of a session: docs/adr/0054. git before
    # 2.46 (Debian 12 has 2.39) knows no /workspace/*.
    'printf "[safe]\\n\\tdirectory = *\\n" >"$1/etc/gitconfig"',
    # The shell prints the greeting of the image instead.
    'rm -f "$1"/etc/update-motd.d/* && : >"$1/etc/motd"',
)

# After installing packages on top of a base, before the cleaning.
ON_TOP = (
    # git-lfs adds a section to the file of the base, its lines in random order.
    'cd "$1/etc" && if grep -q lfs gitconfig; then { sed /lfs/q gitconfig; sed 1,/lfs/d gitconfig | sort; }'
    " >gitconfig.new && mv gitconfig.new gitconfig; fi",
    # Each container generates another one.
    'rm -f "$1/var/lib/dbus/machine-id"',
)

# After everything else.
CLEANING = (
    # Host name and resolver of the build host; identities that every container must create.
    'rm -f "$1/etc/resolv.conf" "$1/etc/hostname" "$1/etc/hosts" "$1/etc/machine-id" "$1"/etc/ssh/ssh_host_*',
    # debconf writes them again; they hold the descriptions of questions that no one asks.
    'rm -f "$1"/var/cache/debconf/*.dat',
    # Backup files.
    'rm -f "$1"/etc/passwd- "$1"/etc/group- "$1"/etc/shadow- "$1"/etc/gshadow- "$1"/etc/sub[ug]id-',
    'rm -f "$1"/var/lib/dpkg/*-old "$1"/var/cache/debconf/*-old "$1/var/cache/ldconfig/aux-cache"',
    # Logs are deleted; the log files that login programs expect are emptied.
    'find "$1/var/log" -type f \\( -name "*.log" -o -name "*.xz" \\) -delete',
    'find "$1/var/log" -type f -exec truncate -s 0 {} +',
)

# The last hook. The folders are as the package has them: apt would give them to its own user, but only if
# that user can enter $TMPDIR.
APT_CLEANING = (
    'cd "$1/var" && rm -rf lib/apt/lists/* cache/apt/*'
    " && install -d -o 0 -g 0 -m 0755 lib/apt/lists/partial cache/apt/archives/partial"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseRecipe:
    """Everything that determines a base, except for the state of the archive."""

    os: str  # "debian12"
    suite: str  # "bookworm"
    components: tuple[str, ...]
    keyring: PurePosixPath  # on the build host
    keyring_package: str  # the package that installs it
    python: str  # major.minor of the suite's interpreter
    packages: tuple[str, ...]
    dpkg_options: tuple[str, ...]
    hooks: tuple[str, ...]
    epoch: int

    @property
    def distribution(self) -> str:
        return operating_system(self.os).distribution

    def key(self) -> str:
        """A hash of all fields, 64 hex digits."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True, default=str).encode()).hexdigest()


def recipe(os_name: str) -> BaseRecipe:
    """The recipe of the base of *os_name*; a standalone Python in the name does not change it.

    :raises ConfigError: the OS is unknown.
    """
    system = operating_system(base_name(os_name))
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


SNAPSHOT = "TORCHKILN_SNAPSHOT"  # the variable with the address of the snapshot service
_ADDRESS = re.compile(r"(https?|file|copy)://[^\s'\"|&\\]+")
_SNAPSHOT = re.compile(r"/(\d{8}T\d{6}Z)/?$")


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveSources:
    """Mirrors and keyring; an empty mirror means the archive's official address."""

    mirror: str
    security_mirror: str
    keyring: PurePosixPath
    untrusted: bool  # whether a mirror is declared as untrusted


def variables(recipe: BaseRecipe) -> tuple[str, str, str]:
    """The names of the variables for mirror, security mirror and keyring of the distribution."""
    return operating_system(recipe.os).variables


def values(recipe: BaseRecipe, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Mirror, security mirror and keyring that *environ* or its preset sets; empty if neither does.

    :raises ConfigError: there is no such preset.
    """
    preset = preset_of(environ)
    mirror, security, keyring = (environ.get(name) or preset.get(name, "") for name in variables(recipe))
    return mirror, security, keyring


def key_of(recipe: BaseRecipe, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The settings that decide whether locked packages can be had."""
    return (*values(recipe, environ), environ.get(VARIABLE, ""), environ.get(SNAPSHOT, ""))


def sources_of(recipe: BaseRecipe, environ: Mapping[str, str]) -> ArchiveSources:
    """The sources in *environ*, by default those of *recipe*.

    :raises ConfigError: a mirror is not a URL, or the keyring is not an absolute path.
    """
    mirror, security, keyring = variables(recipe)
    found = dict(zip((mirror, security, keyring), values(recipe, environ), strict=True))
    mirrors = {name: declared(found[name]) for name in (mirror, security)}
    for name, (address, _) in mirrors.items():
        if address and not _ADDRESS.fullmatch(address):
            raise ConfigError(f"{name} is not a valid URL of an archive: {found[name]!r}")
    path = PurePosixPath(found[keyring] or recipe.keyring)
    if not path.is_absolute() or not re.fullmatch(r"[\w./+~-]+", str(path)):
        raise ConfigError(f"{keyring} is not an absolute path: {str(path)!r}")
    return ArchiveSources(
        mirror=mirrors[mirror][0],
        security_mirror=mirrors[security][0],
        keyring=path,
        untrusted=any(untrusted for _, untrusted in mirrors.values()),
    )


def copying(sources: ArchiveSources) -> ArchiveSources:
    """*sources* with copy: in place of file:, so that apt copies files of this machine, too."""
    mirror, security = (re.sub("^file:", "copy:", at) for at in (sources.mirror, sources.security_mirror))
    return replace(sources, mirror=mirror, security_mirror=security)


def snapshot_of(sources: ArchiveSources) -> str:
    """The time of the snapshot of the archive, "20260101T000000Z"; empty if the mirror is not a snapshot."""
    found = _SNAPSHOT.search(sources.mirror)
    return found[1] if found else ""


def edits(sources: ArchiveSources) -> tuple[str, ...]:
    """A sed script that sets the mirrors in the sources.list of mmdebstrap."""
    pairs = ((sources.mirror, "/-security /!"), (sources.security_mirror, "/-security /"))
    return tuple(
        # The Release file of a snapshot is expired.
        f"{which}s|^deb [^ ]*|deb {'[check-valid-until=no] ' if _SNAPSHOT.search(address) else ''}{address}|"
        for address, which in pairs
        if address
    )
