"""Decides which environment variables the image of a project may add to those of its parent image. Pure."""

from __future__ import annotations

import re

# Names, and the form of their values. They select no code: not PYTHONWARNINGS, which imports modules, nor
# folders of compiled kernels, such as TRITON_CACHE_DIR, nor hooks, plugins and programs of applications.
_ALLOWED = {
    r"APP_[A-Z0-9_]+|(HF_(HUB|DATASETS|ASSETS)|TRANSFORMERS)_CACHE|TORCH_HOME|LOG_LEVEL|PORT"
    r"|(HF|HYDRA|TRANSFORMERS|DIFFUSERS|WANDB|MLFLOW|COMET|CLEARML|NEPTUNE|RAY|MAMBA|TQDM)_([A-Z0-9]+_)*"
    r"(HOME|PREFIX|DIR|ENDPOINT|UR[IL]|HOST|PORT|ADDRESS|PROJECT|ENTITY|WORKSPACE|NAME|GROUP|TAGS|ID|MODE"
    r"|OFFLINE|DISABLED?|SILENT|VERBOSITY|LEVEL|TIMEOUT|ERROR|TELEMETRY|TRANSFER|BARS|INTERVAL|SIZE)": r".*",
    r"PYTHON(UNBUFFERED|HASHSEED|FAULTHANDLER|DONTWRITEBYTECODE)|TOKENIZERS_PARALLELISM|NCCL_DEBUG"
    r"|(OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS|TORCH_SHOW_CPP_STACKTRACES"
    r"|CUDA_(DEVICE_ORDER|DEVICE_MAX_CONNECTIONS|LAUNCH_BLOCKING)": r"\w{1,20}",
    r"TZ": r"\w[\w+-]*(/[\w+-]+)*",  # the name of a zone, not the path of a file
    r"CUBLAS_WORKSPACE_CONFIG|PYTORCH_(CUDA_)?ALLOC_CONF": r"[\w:.,>\[\]]+",
}


def variable_fault(name: str, value: str) -> str:
    """Why a project must not set the variable *name* to *value*; empty if it may."""
    form = next((values for names, values in _ALLOWED.items() if re.fullmatch(names, name)), None)
    if form is None:
        return "set it when the container starts, or give it a name that begins with APP_"
    return "" if re.fullmatch(form, value) else f"{value[:80]!r} is not a value of it"
