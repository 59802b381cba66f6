"""The time that a fresh process needs to load code on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

ROUNDS = 3
_PROGRAM = """
import json, time
begin = time.perf_counter()
import torch
imported = time.perf_counter()
torch.cuda.init(); torch.empty(1, device="cuda"); torch.cuda.synchronize()
ready = time.perf_counter()
a = torch.randn(512, 512, device="cuda", dtype=torch.float16); (a @ a).sum().item()
product = time.perf_counter()
x = torch.randn(8, 3, 64, 64, device="cuda"); w = torch.randn(16, 3, 3, 3, device="cuda")
torch.nn.functional.conv2d(x, w).sum().item()
end = time.perf_counter()
free, total = torch.cuda.mem_get_info()
print(json.dumps(dict(import_s=imported - begin, context_s=ready - imported, matmul_s=product - ready,
                      conv_s=end - product, used_mib=(total - free) >> 20)))
"""


def startup() -> dict[str, list[dict[str, float]]]:
    """Seconds and MiB of GPU memory of fresh processes, by CUDA_MODULE_LOADING."""
    return {mode: [_measured(mode) for _ in range(ROUNDS)] for mode in ("LAZY", "EAGER")}


def _measured(mode: str) -> dict[str, float]:
    environ = dict(os.environ, CUDA_MODULE_LOADING=mode)
    found: dict[str, float] = json.loads(
        subprocess.check_output([sys.executable, "-c", _PROGRAM], env=environ, text=True)
    )
    return found
