"""List the files of this image that contain a key, a token or a password: an image has none."""

import fnmatch
import json
import os
import re
import sys

FOLDERS = ("/etc", "/root", "/home", "/opt/torchkiln", "/run", "/srv", "/tmp", "/usr/local/etc", "/var")
OF_SUITE = ("/opt/torchkiln/smoke_tests", "/opt/torchkiln/pytest-wheels", "/opt/torchkiln/smoke-facts.json")
MOST = 1 << 20  # bytes; no configuration file or key is larger
# Files that contain only credentials, by the end of their path.
NAMES = (
    *("/ssh_host_*_key", "/authorized_keys", "/authorized_keys2", "/etc/ssh/authorized_keys/*"),
    *("/id_rsa", "/id_dsa", "/id_ecdsa", "/id_ed25519"),
    *("/.netrc", "/.git-credentials", "/.config/git/credentials", "/.pypirc", "/.pgpass"),
    *("/.aws/credentials", "/.docker/config.json", "/.kube/config", "/huggingface/token", "/kaggle.json"),
    "/jupyter_cookie_secret",
)
# Configuration files that can contain a password, and the pattern of the password.
CONFIGURATIONS = (
    *("pip.conf", "uv.toml", ".condarc", "condarc", ".mambarc", ".npmrc", "*.list", "*.sources"),
    *(".gitconfig", "gitconfig", ".wgetrc", "wgetrc", ".curlrc", "auth.conf", "environment"),
    *("jupyter*config*", "page_config.json"),
)
KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY")
PASSWORD = re.compile(
    rb"://[^/\s:@]*:[^/\s@]+@"  # in a URL
    # A setting that is not a comment. An empty token of Jupyter disables the login.
    rb"|^[^#\n]*(token|password|passwd|secret)['\"]?\s*[=:]"
    rb"|^\s*machine\s.*\spassword\s",
    re.IGNORECASE | re.MULTILINE,
)


def main():
    """Print the list: each file with what it contains."""
    found = [*passwords_of_accounts()]
    for path in files(*FOLDERS, os.path.join(sys.prefix, "etc"), os.path.join(sys.prefix, "pip.conf")):
        if kind := contents(path):
            found.append(f"{path}: {kind}")
    print(json.dumps(sorted(set(found))))


def files(*tops):
    """The regular files below *tops*, without following links; without files of the suite and of other
    mounts, because an engine may mount secrets of its host at /run/secrets."""
    device = os.stat("/").st_dev
    for top in tops:
        if os.path.isfile(top):
            yield top
        for folder, folders, names in os.walk(top):
            if os.lstat(folder).st_dev != device:
                folders.clear()
                continue
            folders[:] = [name for name in folders if os.path.join(folder, name) not in OF_SUITE]
            paths = (os.path.join(folder, name) for name in names)
            yield from (path for path in paths if os.path.isfile(path) and path not in OF_SUITE)


def contents(path):
    """The kind of secret in the file at *path*; None: no secret."""
    if any(fnmatch.fnmatch(path, f"*{name}") for name in NAMES):
        return "a key or credentials"
    try:
        with open(path, "rb") as file:
            data = file.read(MOST)
    except OSError:
        return None
    if KEY.search(data):
        return "a private key"
    name = os.path.basename(path)
    if any(fnmatch.fnmatch(name, pattern) for pattern in CONFIGURATIONS) and PASSWORD.search(data):
        return "a password or token"
    return None


def passwords_of_accounts():
    """Accounts that can log in by a password, or without one."""
    try:
        with open("/etc/shadow") as file:
            accounts = [line.split(":") for line in file if line.count(":") > 1]
    except OSError:
        return
    for name, password, *_ in accounts:
        if not password.startswith(("*", "!")):
            yield f"/etc/shadow: {name} has a password"


if __name__ == "__main__":
    main()
