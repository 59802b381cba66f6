"""Decides where the layer of OS packages may have new files. Pure.

New files are allowed only in folders that are listed here, because programs of the parent image may read
new files in its folders. A new folder is harmless, unless a program searches for its name: such names are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torchkiln.projects.apt.package_paths import is_of_image
from torchkiln.projects.gate.entries import Entry

#: Empty folders for local files, which packages create; some belong to the group staff.
LOCAL = re.compile(r"usr/local/share/.+")

_OUTSIDE = "not in a folder to which OS packages may add files"
_TRIPLET = r"[a-z0-9_]+-linux-gnu"
# Folders that packages may create, besides those in `_AREAS`.
_FOLDERS = re.compile(
    rf"usr|etc|var|usr/(bin|sbin|games|lib|libexec|include|share)|usr/lib/{_TRIPLET}"
    r"|usr/lib/python3(/dist-packages)?|var/(lib|cache|log|spool|games)"
    rf"|var/lib/dpkg(/(info|alternatives|triggers))?|{LOCAL.pattern}"
)
# Folders in which compilers, libc, OpenSSL, PAM, linkers and others search for files.
_READ = (
    r"gcc(-cross)?|gconv|locale|ldscripts|bfd-plugins|compat-ld|gold-ld|audit|security|sasl2|krb5|ssl"
    r"|engines-[\d.]+|ossl-modules|glibc-hwcaps|tls|haswell|avx512_1|xeon_phi|x86_64|python[\d.]*(\.zip)?"
    r"|pkcs11|p11-kit.*|apt|dpkg|git-core|openssh|sudo|coreutils|.*nvidia.*|cuda.*"
)
_NEVER = re.compile(
    rf"usr/include/({_TRIPLET}/)?(c\+\+|python[^/]*)(/.*)?|usr/(bin|sbin|games)/[^/]+/.+"
    r"|etc/default/(locale|nss|useradd)|etc/xdg/(pip|uv|jupyter|ipython)(/.*)?"
    r"|usr/share/bash-completion/(?!completions(/[^/]+)?$).+"
    r"|var/lib/dpkg/(?!(info|alternatives|triggers)/[^/]+$|status$|statoverride$|diversions$).+"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Area:
    """A folder in which packages may create folders and files; the patterns match names in this folder."""

    folder: str  # a pattern
    shared: str = ""  # of the parent image's folders, those to which packages may add files
    refused: str = _READ  # names that packages must not add
    direct: str = r".+"  # names of files and links in the folder itself


_AREAS = tuple(
    (re.compile(rf"(?:{area.folder})/([^/]+)(/.*)?"), area)
    for area in (
        # os_names.py checks the names of files in these three.
        _Area(folder="usr/(bin|sbin|games)", refused=""),
        _Area(folder="usr/include", shared=".+", refused=""),
        _Area(folder="usr/lib/python3/dist-packages", shared=".+", refused=""),
        _Area(folder=f"usr/lib/{_TRIPLET}", shared="pkgconfig|cmake|perl5|gio|glib-2[.]0|girepository-1[.]0"),
        _Area(
            folder="usr/lib",
            shared=r"systemd|(tmpfiles|sysctl|sysusers|modprobe|modules-load|binfmt)[.]d|udev|mime|lsb|init"
            rf"|terminfo|{_TRIPLET}",
        ),
        _Area(folder="usr/libexec"),
        _Area(
            folder="usr/share",
            shared=r"X11|aclocal|appdata|applications|apport|bash-completion|binfmts|bug|cmake|common-licenses"
            r"|dbus-1|debianutils|dict|doc(-base)?|font(s|config)|glib-2[.]0|icons|info|javascript|lintian"
            r"|locale|man|menu|metainfo|mime|misc|nano|perl5|pixmaps|pkgconfig|polkit-1|python3|sgml|sounds"
            r"|terminfo|themes|vim|xml|zoneinfo|zsh",
            refused=r"jupyter|ipython|python-wheels|ca-certificates|p11-kit|pam.*|.*nvidia.*|cuda.*",
        ),
        _Area(
            folder="etc",
            shared=r"X11|alternatives|apparmor[.]d|cron[.].+|dbus-1|default|fonts|init[.]d|kernel|logcheck"
            r"|logrotate[.]d|modprobe[.]d|rc[0-6S][.]d|sysctl[.]d|systemd|terminfo|tmpfiles[.]d|udev|ufw|xdg",
            refused=r".*nvidia.*|(cuda|cufile|nccl|python|bash|profile|ld[.]so|sudo|pam[.]).*|conda|pip|uv"
            r"|jupyter|ipython|perl|ssh|ssl|gss|pkcs11|security|skel|ca-certificates|apt|dpkg",
            direct=r"(sensors3|libao|fuse|idmapd|smi|tidy|manpath)[.](conf|config)|gitconfig|vdpau_wrapper[.]cfg"
            r"|mailcap([.]order)?|magic([.]mime)?|papersize|paperspecs|wgetrc|odbc(inst)?[.]ini|localtime"
            r"|timezone|locale[.](alias|gen)|rpc|services|protocols|ethertypes",
        ),
        _Area(folder="var/lib", shared="dpkg|systemd|ucf|misc", refused="apt|pam|python|sudo", direct="$"),
        _Area(folder="var/cache", refused="apt|ldconfig|adduser|debconf", direct="$"),
        _Area(folder="var/log", refused="apt"),
        _Area(folder="var/(spool|games)", refused="", direct="$"),
    )
)


def place_fault(path: str, kind: str, tree: Mapping[str, Entry]) -> str:
    """Why packages must not add *path*, which the parent image lacks; empty if they may.

    :param kind: of the entry: file, folder, link, hard link.
    :param tree: the files of the parent image.
    """
    if is_of_image(path):
        return "in a folder of the image"
    if kind == "folder" and _FOLDERS.fullmatch(path):
        return ""
    if _NEVER.fullmatch(path):
        return _OUTSIDE
    for pattern, area in _AREAS:
        if found := pattern.fullmatch(path):
            first, rest = found.groups()[-2:]
            return _fault_in(area, path.removesuffix(rest or ""), first, kind, tree, deeper=bool(rest))
    return _OUTSIDE


def _fault_in(
    area: _Area, top: str, first: str, kind: str, tree: Mapping[str, Entry], *, deeper: bool
) -> str:
    """The fault of a path in *area*, empty if it has none; *top* is the path up to the name *first*."""
    if top in tree:
        return (
            ""
            if re.fullmatch(area.shared, first)
            else f"packages may add nothing to /{top} of the parent image"
        )
    if re.fullmatch(area.refused, first):
        return f"programs of the parent image read /{top}"
    if not deeper and kind != "folder" and not re.fullmatch(area.direct, first):
        return _OUTSIDE
    return ""
