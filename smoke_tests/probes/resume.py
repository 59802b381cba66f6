"""Resume a training run in a new process: `resume.py FILE` loads what resume.py of the suite has saved."""

import json
import runpy
import sys
from pathlib import Path

SUITE = Path(__file__).resolve().parent.parent
runpy.run_path(str(SUITE / "one.py"))["load_suite"](SUITE)
from smoke_tests.resume import HALF, Run  # noqa: E402

run = Run(seed=2)  # another seed: nothing may remain of this state
run.load(Path(sys.argv[1]))
run.train(HALF)
print(json.dumps(run.summary()))
