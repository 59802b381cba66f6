"""Load every library of the cuDNN that torch uses; print their paths, and the errors of those that fail.

It runs in a separate process: a library that is already loaded satisfies every later search for its name, so
cuDNN's own search would not be tested.
"""

import csv
import ctypes
import json
import os
import re
from importlib.metadata import distributions

import torch  # noqa: F401 - loads cuDNN as every program does

# Also the names of the system's packages (.so.9.5.1) and of repaired wheels (libcudnn-1a2b3c4d.so.8).
LIBRARY = re.compile(r"libcudnn[\w-]*\.so(\.\d+)*")
DISTRIBUTION = re.compile(r"nvidia-cudnn(-cu\d+)?")


def of_distributions():
    """The libraries in NVIDIA's distribution of cuDNN, by its RECORD, which also lists a deleted file."""
    for found in distributions():
        if DISTRIBUTION.fullmatch((found.metadata["Name"] or "").lower().replace("_", "-")):
            # Not found.files, which from Python 3.12 on leaves out deleted files.
            paths = [row[0] for row in csv.reader((found.read_text("RECORD") or "").splitlines())]
            libraries = [path for path in paths if LIBRARY.fullmatch(os.path.basename(path))]
            yield from (os.path.realpath(found.locate_file(path)) for path in libraries)


def mapped():
    """The libraries of cuDNN in this process."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    return sorted(os.path.realpath(path) for path in paths if LIBRARY.fullmatch(os.path.basename(path)))


def beside(loaded):
    """The libraries in the folders of *loaded*: of conda's cuDNN, and of the cuDNN inside torch's own
    wheels."""
    for folder in sorted({os.path.dirname(path) for path in loaded}):
        names = [name for name in os.listdir(folder) if LIBRARY.fullmatch(name)]
        yield from (os.path.realpath(os.path.join(folder, name)) for name in names)


def fault(path):
    """The loader's message, without folders; empty if it loads *path*."""
    try:
        ctypes.CDLL(path)
    except OSError as error:
        name = os.path.basename(path)
        message = re.sub(r"/\S*/", "", str(error))
        return message if name in message else f"{name}: {message}"
    return ""


loaded = mapped()
libraries = set(of_distributions())
if loaded and not libraries & set(loaded):  # there is no distribution, or torch uses another cuDNN
    libraries = set(beside(loaded))
faults = [message for path in sorted(libraries) if (message := fault(path))]
print(json.dumps({"loaded": loaded, "libraries": sorted(libraries), "faults": faults}))
