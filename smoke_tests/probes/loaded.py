"""Import torch and print every library file that is mapped then."""

import json

import torch  # noqa: F401

with open("/proc/self/maps") as maps:
    paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
print(json.dumps(sorted(path for path in paths if ".so" in path)))
