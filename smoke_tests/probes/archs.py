"""The GPU code in this torch: the flags that were compiled into it, which need no GPU to be read."""

import json

import torch

flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
print(json.dumps(flags.split() if flags else []))
