"""Writes the files of /etc that belong to a machine and not to an image, for containers without an engine."""

from __future__ import annotations


def machine_files(hostname: str) -> dict[str, str]:
    """The content of /etc/hosts, /etc/hostname and /etc/resolv.conf, by path."""
    return {
        "/etc/hosts": _hosts(hostname),
        "/etc/hostname": f"{hostname}\n",
        "/etc/resolv.conf": _resolver(),
    }


def _hosts(hostname: str) -> str:
    # Without the IPv4-mapped address, c10d's reverse lookup takes 15 s if there is no name server.
    addresses = (("127.0.0.1", "localhost"), ("::1", "localhost"), ("127.0.1.1", hostname))
    return "".join(f"{ip}\t{name}\n" for ip, name in (*addresses, ("::ffff:127.0.0.1", "localhost")))


def _resolver() -> str:
    try:
        with open("/etc/resolv.conf") as file:
            return file.read()
    except OSError:
        return ""
