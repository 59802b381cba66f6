"""Run `pip install` many times in one process: reads a request in JSON per line, prints exit code and output.

The argument of this program is a folder with pip. A request has `links`, `requirements` and `root`.
pip gets the Dockerfile's options, and --root: it writes below that folder instead of to /opt/venv.
"""

import contextlib
import io
import json
import os
import sys

PREFIX = "/opt/venv"
OPTIONS = (
    "--isolated --no-index --require-hashes --no-deps --no-compile --no-cache-dir --root-user-action ignore "
    "--disable-pip-version-check --no-warn-script-location --ignore-installed"
)


def main() -> None:
    """Handle requests until stdin ends."""
    sys.path.insert(0, sys.argv[1])
    from pip._internal.cli.main import main as pip

    os.umask(0o022)
    sys.executable = f"{PREFIX}/bin/python"  # pip writes it into shebangs of scripts, as in the image
    for line in sys.stdin:
        request = json.loads(line)
        output = io.StringIO()
        argv = ["install", *OPTIONS.split(), "--find-links", request["links"], "-r", request["requirements"]]
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = pip([*argv, "--root", request["root"], "--prefix", PREFIX])
        sys.stdout.write(json.dumps({"code": code, "output": output.getvalue()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
