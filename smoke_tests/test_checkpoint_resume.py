"""checkpoint-resume: a run that is saved and resumed in a new process equals the uninterrupted run."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from smoke_tests.probe import probe

VALUES = {
    "checkpoint-resume": {
        "device": {"equals": ["cuda", "cuda"]},
        "steps": {"equals": 14},
        "scales": {"type": ["number"]},
        # Tensors of the saved state that torch.load returns with other bits.
        "changed_in_the_file": {"equals": []},
        # The same kernels on the same numbers; equal bits are not required, because a library may choose
        # other kernels. A run that lacks a part of its state differs by more than 1e-3.
        "loss_error": {"at_most": 1e-5},
        "weight_error": {"at_most": 1e-5},
        "buffer_error": {"at_most": 1e-5},
        "moment_error": {"at_most": 1e-4},
        # These are exact.
        "counts_differ": {"equals": False},  # of steps, and of batches in the batch norm
        "rates_differ": {"equals": False},
        "scale_ratio": {"equals": 1.0},
        "growth_difference": {"equals": 0},
        "draws_differ": {"equals": []},
        # Without the saved state the second half is another one.
        "weight_error_of_another_run": {"at_least": 1e-2},
    },
}


@pytest.mark.tier(1)
def test_checkpoint_resume(measure, tmp_path):
    """Train, save, resume in a new process; compare losses, weights, optimizers, scaler, random numbers."""
    import torch

    from smoke_tests.closeness import relative_error
    from smoke_tests.resume import HALF, Run

    run, file = Run(seed=1), tmp_path / "run.pt"
    run.train(HALF)
    run.save(file)
    measure("changed_in_the_file", _changed(torch, run, file))
    with ThreadPoolExecutor() as pool:  # the new process takes seconds to start
        other_process = pool.submit(probe, "resume", str(file))
        run.train(HALF)
        whole, resumed = run.summary(), other_process.result()
    measure("device", [whole["device"], resumed["device"]])
    measure("steps", len(whole["losses"]))
    measure("scales", [whole["scale"], resumed["scale"]])

    def error(name, found, expected):
        measure(name, relative_error(torch.tensor(found), torch.tensor(expected)))

    error("loss_error", resumed["losses"], whole["losses"][HALF:])
    error("weight_error", resumed["weights"], whole["weights"])
    error("buffer_error", resumed["buffers"], whole["buffers"])
    error("moment_error", resumed["moments"], whole["moments"])
    measure("counts_differ", resumed["counts"] != whole["counts"])
    measure("rates_differ", resumed["rates"] != whole["rates"])
    measure("scale_ratio", resumed["scale"] / whole["scale"])
    measure("growth_difference", resumed["growth"] - whole["growth"])
    pairs = zip(("CPU", "GPU", "Python"), resumed["draws"], whole["draws"], strict=True)
    measure("draws_differ", [name for name, found, expected in pairs if found != expected])
    other = Run(seed=2)
    other.train(2 * HALF)
    error("weight_error_of_another_run", other.summary()["weights"], whole["weights"])


def _changed(torch, run, file):
    """Paths of the values whose bits the file does not have."""
    before, after = dict(_leaves(run.state())), dict(_leaves(torch.load(file, map_location="cuda")))
    different = {
        name for name, value in before.items() if name in after and not _same(torch, value, after[name])
    }
    return sorted(different | before.keys() ^ after.keys())


def _leaves(value, name=""):
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        yield name, value
        return
    for key, item in items:
        yield from _leaves(item, f"{name}/{key}")


def _same(torch, value, other):
    if not isinstance(value, torch.Tensor):
        return value == other
    return value.dtype == other.dtype and torch.equal(value.cpu(), other.cpu())
