"""Runs in an image, with the smoke suite beside it: prints what the loader does not find, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from smoke_tests.linkage import read_linkage, sonames
from smoke_tests.probe import probe

found = read_linkage(Path(sys.prefix))
missing = [*found.unfound, *found.unfound_programs]
loaded, fault = list[str](), ""
if missing:
    try:
        loaded = sorted(sonames(probe("loaded")))  # by `import torch`
    except AssertionError as error:
        fault = str(error)
values = {"missing": missing, "loaded": loaded, "import_torch": fault, "versions": found.unversioned}
sys.stdout.write(json.dumps(values) + "\n")
