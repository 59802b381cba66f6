"""Import torch, NumPy, torchvision and, if installed, torchaudio, and time each.

Then convert an array from NumPy to torch and back.
"""

import importlib
import importlib.util
import json
import time

seconds, versions = {}, {}
for name in ("torch", "numpy", "torchvision", "torchaudio"):
    if name == "torchaudio" and importlib.util.find_spec(name) is None:
        continue  # a missing version shows it
    began = time.perf_counter()
    versions[name] = str(importlib.import_module(name).__version__)
    seconds[name] = round(time.perf_counter() - began, 3)

import numpy  # noqa: E402
import torch  # noqa: E402

# With NumPy 2 and a torch that was built for NumPy 1, the imports succeed and this fails.
bridge = torch.from_numpy(numpy.arange(3)).add(1).numpy().tolist()
config = torch.__config__.show()
print(json.dumps({"seconds": seconds, "versions": versions, "bridge": bridge, "config": config}))
