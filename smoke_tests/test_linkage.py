"""linkage: every library that an ELF file of the environment needs can be found."""

import sys
from pathlib import Path

import pytest

from smoke_tests.allowed import allowed_unresolved, optional, packages_folder
from smoke_tests.linkage import read_linkage, sonames
from smoke_tests.probe import probe

# Libraries of the driver: the container runtime mounts them; an image never contains them.
DRIVER = {"libcuda.so.1", "libnvidia-ml.so.1", "libnvcuvid.so.1", "libnvidia-encode.so.1"}

VALUES = {
    "linkage": {
        "files": {"at_least": 1, "type": "integer"},
        "needed": {"type": "integer"},
        "found_by_torch_only": {"type": [["string"]]},
        "import_torch": {"equals": ""},
        "unresolved": {"type": [["string"]]},
        # Entries of allowed_unresolved.json.
        "unresolved_not_listed": {"equals": []},
        "listed_but_resolved": {"equals": []},
        "unversioned": {"equals": []},
    },
}


@pytest.mark.tier(0)
@pytest.mark.limit(600)
def test_linkage(facts, measure):
    """The loader or `import torch` finds each needed library, except the driver's and those with a listed
    reason."""
    prefix = Path(sys.prefix)
    linkage = read_linkage(prefix)
    try:
        loaded, error = sonames(probe("loaded")), ""
    except AssertionError as failure:
        loaded, error = set(), str(failure)
    unmet = [pair for pair in linkage.unfound if pair[1] not in loaded] + list(linkage.unfound_programs)
    unresolved = sorted([file, soname] for file, soname in unmet if soname not in DRIVER)

    measure("files", linkage.files)
    measure("needed", linkage.needed)
    measure("found_by_torch_only", [pair for pair in linkage.unfound if pair[1] in loaded])
    measure("import_torch", error)
    measure("unresolved", unresolved)
    wheels, site = facts["wheels"], packages_folder(prefix, facts["claims"]["python"])
    listed, may = allowed_unresolved(wheels, site), optional(unresolved, wheels, site)
    measure("unresolved_not_listed", [pair for pair in unresolved if pair not in listed + may])
    measure("listed_but_resolved", [pair for pair in listed if pair not in unresolved])
    measure("unversioned", list(linkage.unversioned))
