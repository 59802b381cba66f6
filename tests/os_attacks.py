"""Hostile packages: a script tries what only root of the host may do; files and a script change the image."""

from __future__ import annotations

from tests.servers.debian_archive import LIBRARIES, Deb, library

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
LDCONFIG = "activate-noawait ldconfig"
EVIL = Deb(
    name="evil",
    files={
        "opt/venv/lib/evil.pth": "",
        "usr/local/cuda-12.1/x": "",
        "usr/lib/python3/dist-packages/sitecustomize.py": "",
        "usr/lib/nested/libmd.so.0": library(),
        "etc/ld.so.conf.d/000-evil.conf": "/usr/lib/nested\n",
        f"{LIBRARIES}/libcuda.so.1": "",
    },
    scripts={"postinst": "echo changed >>/usr/bin/diff3\necho x >/etc/ld.so.preload"},
    triggers=LDCONFIG,
)
