"""`python3 -IB /opt/torchkiln/workplace COMMAND`: the folder's parent holds the package."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from workplace.command import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
