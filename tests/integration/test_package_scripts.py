"""Scripts of OS packages: what only root of the host may do fails in them."""

from __future__ import annotations

from tests.integration.test_os_packages import GOOD, Scene, pytestmark, scene, text
from tests.servers.debian_archive import Deb

__all__ = ["pytestmark", "scene"]

# Process 1 has the host's root; the script is in a chroot.
ATTACKS = {
    "read": "cp /proc/1/root/etc/shadow /dev/null",
    "write": "mkdir /proc/1/root/run/torchkiln-owned && rmdir /proc/1/root/run/torchkiln-owned",
    "device": "mknod /tmp/mem c 1 1",
    "devices": "chroot /proc/1/root mount -t devtmpfs none /mnt",
    "priority": "chroot /proc/1/root chrt -r 1 true",
    "setting": "chroot /proc/1/root sysctl -q -w vm.swappiness=$(cat /proc/sys/vm/swappiness)",
    "clock": 'date -s "$(date)"',
}
_TRIES = "\n".join(f"({attack}) >/dev/null 2>&1 && echo {name}" for name, attack in ATTACKS.items())
ATTACKER = Deb(name="attacker", scripts={"postinst": f"set +e\nexec >/etc/attacks\necho tried\n{_TRIES}\n:"})


def test_scripts_of_packages_cannot_do_what_root_can(scene: Scene) -> None:
    """They are root of a user namespace: they own no file of the host, and have no capability on it."""
    scene.archive.publish(*GOOD, ATTACKER)
    assert text(scene.store, scene.lock("attacker")[0], "etc/attacks") == "tried\n"
