"""A bridge and an nftables NAT table for the engine: containers reach the Internet; the host's rules stay."""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_POOLS = ("172.30.0.0/16", "172.29.0.0/16", "172.28.0.0/16", "10.213.0.0/16")
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_BEFORE = Path("/run/torchkiln-ip-forward")  # stores ip_forward's value from before the first engine started
_RULES = """\
table ip {name} {{
  chain postrouting {{
    type nat hook postrouting priority srcnat;
    ip saddr {pool} ip daddr != {pool} masquerade
  }}
  chain forward {{
    type filter hook forward priority filter;
    ip saddr {pool} accept
    ct state established,related accept
    iifname "tk*" accept
    iifname "br-*" accept
    {last}
  }}
}}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """The settings of dockerd: its bridge, and the address pool of its networks."""

    bridge: str
    pool: str
    mtu: int


@contextmanager
def network(root: Path) -> Iterator[Network]:
    """A bridge with NAT while the context lasts. *root* holds `ip` and `nft`.

    :raises OSError: the kernel cannot create it.
    """
    name = f"tk{os.getpid()}"
    pool = next((pool for pool in _POOLS if _is_free(root, pool)), "")
    if not pool:
        raise OSError(f"every address pool overlaps a route of this machine: {', '.join(_POOLS)}")
    if not _BEFORE.exists():
        _BEFORE.write_text(_FORWARD.read_text())
    try:
        # Without a fixed MAC address, a bridge has that of a port, which changes when a container ends;
        # the other containers then send to the old address.
        mac = "02:54:" + ":".join(f"{byte:02x}" for byte in os.getpid().to_bytes(4, "big"))
        _in(root, "ip", "link", "add", "name", name, "address", mac, "type", "bridge")
        _in(root, "ip", "addr", "add", f"{pool.removesuffix('.0.0/16')}.0.1/24", "dev", name)
        _in(root, "ip", "link", "set", name, "up")
        # If IP forwarding was off before, only connections that containers start are forwarded.
        last = "" if _BEFORE.read_text().strip() == "1" else "drop"
        _in(root, "nft", "-f", "-", text=_RULES.format(name=name, pool=pool, last=last))
        _FORWARD.write_text("1")
        yield Network(bridge=name, pool=pool, mtu=_mtu())
    finally:
        _delete(root, name, pool)


def sweep(root: Path) -> None:
    """Remove tables and bridges that a killed process left behind."""
    for name in re.findall(r"table ip (tk\d+)", _in(root, "nft", "list", "tables", check=False)):
        if not Path("/proc", name[2:]).exists():
            found = re.search(r"saddr ([\d./]+) ", _in(root, "nft", "list", "table", "ip", name, check=False))
            _delete(root, name, found[1] if found else "")


def _delete(root: Path, name: str, pool: str) -> None:
    _in(root, "nft", "delete", "table", "ip", name, check=False)
    for link in _bridges_in(root, pool) if pool else ():
        _in(root, "ip", "link", "del", link, check=False)
    if "table ip tk" not in _in(root, "nft", "list", "tables", check=False) and _BEFORE.exists():
        _FORWARD.write_text(_BEFORE.read_text())
        _BEFORE.unlink()


def _is_free(root: Path, pool: str) -> bool:
    """Whether no route except the default one overlaps *pool*."""
    network_pool = ipaddress.ip_network(pool)
    for line in _in(root, "ip", "-4", "-o", "route", "show").splitlines():
        place = line.split()[0]
        if place != "default" and ipaddress.ip_network(place, strict=False).overlaps(network_pool):
            return False
    return True


def _bridges_in(root: Path, pool: str) -> list[str]:
    """The names of all bridges in *pool*: the engine's, and those of Compose and user networks."""
    lines = _in(root, "ip", "-4", "-o", "addr", "show", "to", pool, check=False).splitlines()
    return [name for line in lines if Path("/sys/class/net", name := line.split()[1], "bridge").is_dir()]


def _mtu() -> int:
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        if line.split()[1] == "00000000":
            return int(Path("/sys/class/net", line.split()[0], "mtu").read_text())
    return 1500


def _in(root: Path, *argv: str, text: str | None = None, check: bool = True) -> str:
    done = subprocess.run(["chroot", str(root), *argv], input=text, capture_output=True, text=True)
    if check and done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout
