"""user: the software works for root, for uid 1000, and for a uid without an account."""

import pytest

from smoke_tests.probe import probe

VALUES = {
    "user": {
        "stderr": {"type": {"*": "string"}},
        "exit_code": {"equals": {"root": 0, "1000": 0, "12345": 0}},
        "ids": {"equals": {"root": [0, 0], "1000": [1000, 1000], "12345": [12345, 12345]}},
        "import_failures": {"equals": {"root": [], "1000": [], "12345": []}},
        "name": {"equals": {"root": "root", "1000": "user", "12345": "user"}},
        "home": {"equals": {"root": "/root", "1000": "/home/user", "12345": "/tmp/home-12345"}},
        "home_writable": {"equals": {"root": True, "1000": True, "12345": True}},
        "tmp_writable": {"equals": {"root": True, "1000": True, "12345": True}},
        "tmp_mode": {"equals": "1777"},
        "unreadable_for_others": {"equals": []},
    },
}


@pytest.mark.tier(0)
@pytest.mark.limit(420)
def test_user(facts, measure):
    """Each user starts a command through the entrypoint: imports, name and home folder are right."""
    results = probe("user")

    measure("stderr", results["stderr"])
    measure("exit_code", results["exit_code"])
    measure("ids", results["ids"])
    measure("import_failures", results["import_failures"])
    measure("name", results["name"])
    measure("home", results["home"])
    measure("home_writable", results["home_writable"])
    measure("tmp_writable", results["tmp_writable"])
    measure("tmp_mode", results["tmp_mode"])
    measure("unreadable_for_others", results["unreadable"])
