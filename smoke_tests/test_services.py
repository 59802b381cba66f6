"""services: entrypoint, tini, sshd, JupyterLab and health check work; the image contains no secret."""

import re

import pytest

from smoke_tests.probe import probe

# In the output of `jupyter --version`, and in the lock.
OF_JUPYTER = {"jupyterlab": "jupyterlab", "jupyter_server": "jupyter-server", "ipykernel": "ipykernel"}
SECRET_VARIABLE = re.compile(r"(?i)(token|password|passwd|secret|credential|api_?key)[^=]*=.")

VALUES = {
    "services": {
        "credentials": {"equals": []},
        "secret_variables": {"equals": []},
        "entrypoint": {"equals": ["/usr/bin/tini", "--", "/opt/torchkiln/entrypoint"]},
        "cmd": {"equals": []},
        "healthcheck": {"equals": ["CMD", "/opt/torchkiln/healthcheck"]},
        "tini_fault": {"equals": None},
        "tini_is_parent": {"equals": "/usr/bin/tini"},
        "tini_adopts_orphan": {"equals": "/usr/bin/tini"},
        "tini_reaps_orphan": {"equals": True},
        "exit_code_after_sigterm": {"equals": 42},
        "entrypoint_output": {"type": "string"},
        "entrypoint_exit_code": {"equals": 2},
        "prepared": {
            "equals": [
                "authorized_keys/root",
                "authorized_keys/user",
                "host_keys/ssh_host_ecdsa_key",
                "host_keys/ssh_host_ecdsa_key.pub",
                "host_keys/ssh_host_ed25519_key",
                "host_keys/ssh_host_ed25519_key.pub",
                "sshd_config",
            ]
        },
        "sshd_output": {"type": "string"},
        "sshd_test": {"equals": 0},
        "password_logins": {
            "equals": {
                "passwordauthentication": "no",
                "kbdinteractiveauthentication": "no",
                "permitemptypasswords": "no",
            }
        },
        "jupyter_exit_code": {"equals": 0},
        "jupyter_versions": {"expected": "jupyter_versions"},
        "healthcheck_output": {"type": ["string"]},
        "healthcheck_of_command": {"equals": 0},
        "healthcheck_of_refused_port": {"equals": 1},
    },
}


@pytest.mark.tier(0)
def test_services(facts, measure):
    """The entrypoint prepares the services without starting them, so that no port is opened."""
    config = facts["config"]
    credentials = probe("credentials")  # before the services write files
    results = probe("services")
    tini, health = results["tini"], results["health"]

    measure("credentials", credentials)
    measure("secret_variables", [text for text in config["env"] if SECRET_VARIABLE.search(str(text))])
    measure("entrypoint", config["entrypoint"])
    measure("cmd", config["cmd"])
    measure("healthcheck", config["healthcheck"])

    measure("tini_fault", tini.get("fault"))
    measure("tini_is_parent", tini.get("parent"))
    measure("tini_adopts_orphan", tini.get("orphan_parent"))
    measure("tini_reaps_orphan", tini.get("orphan_reaped"))
    measure("exit_code_after_sigterm", tini.get("exit_code"))

    measure("entrypoint_output", results["entrypoint"]["output"])
    measure("entrypoint_exit_code", results["entrypoint"]["exit_code"])
    measure("prepared", results["prepared"])
    measure("sshd_output", results["sshd"]["output"])
    measure("sshd_test", results["sshd"]["exit_code"])
    measure("password_logins", results["logins"])

    measure("jupyter_exit_code", results["jupyter"]["exit_code"])
    versions = dict(re.findall(r"(?m)^(\w+) *: (\S+)", results["jupyter"]["output"]))
    measure("jupyter_versions", {package: versions.get(name) for name, package in OF_JUPYTER.items()})

    measure("healthcheck_output", [health["command"]["output"], health["refused"]["output"]])
    measure("healthcheck_of_command", health["command"]["exit_code"])
    measure("healthcheck_of_refused_port", health["refused"]["exit_code"])
