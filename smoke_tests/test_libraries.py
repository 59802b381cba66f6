"""libraries: each CUDA library of the image is called, and its results agree with FP64 on the CPU."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from smoke_tests.closeness import relative_error

VALUES = {
    "libraries": {
        # Locked wheels of NVIDIA that library_table.py names.
        "wheels_in_the_table": {"expected": "nvidia_wheels"},
        "files_with_device_code": {"type": ["string"]},
        "files_not_in_the_table": {"equals": []},
        "cases": {"expected": "library_cases"},
        "results": {"at_least": 300},
        "wrong_results": {"equals": {}},  # the relative error, or the library's error
        # Files of the table's cases that are still not loaded after all cases.
        "files_not_loaded": {"equals": []},
        # Distances from the distribution; see random_numbers.py.
        "random_numbers": {"type": {"*": "number"}},
        "largest_distance": {"at_most": 2.5},
        "not_repeated_by_a_seed": {"equals": 0},
        "repeated_by_another_seed": {"at_most": 1},
        "permutation_faults": {"equals": 0},
    },
}
PACKAGES = ("nvidia", "torch", "cusparselt")


@pytest.mark.tier(1)
def test_libraries(claims, wheels, measure):
    """Every locked wheel of NVIDIA and every file with device code is in the table; all its cases agree with
    FP64."""
    import torch

    from smoke_tests.curves import figures
    from smoke_tests.device_files import mapped, with_device_code
    from smoke_tests.library_table import Called, of_file, of_nvidia, of_wheel
    from smoke_tests.random_numbers import distances, permutation_faults, repeated
    from smoke_tests.torch_api import tensor_float

    measure("wheels_in_the_table", [name for name in of_nvidia(wheels) if of_wheel(name)])
    site = Path(torch.__file__).parent.parent
    # An environment that is no image may have other packages with device code, of which nothing is known.
    search = ThreadPoolExecutor().submit(with_device_code, site, ("",) if "tag" in claims else PACKAGES)
    tensor_float(False)
    torch.zeros(1, device="cuda")
    results, wrong, ran = 0, {}, []
    for case in _cases(of_nvidia(wheels)):
        ran.append(case)
        for name, error in _wrong(case):
            results += 1
            if error:
                wrong[f"{case}: {name}"] = error
    measure("cases", ran)
    measure("results", results)
    measure("wrong_results", wrong)
    files = search.result()
    measure("files_with_device_code", [str(path.relative_to(site)) for path in files])
    unknown = [path for path in files if of_file(path.name) is None]
    measure("files_not_in_the_table", [str(path.relative_to(site)) for path in unknown])
    loaded = mapped()
    called = [path for path in files if isinstance(of_file(path.name), Called)]
    absent = [path for path in called if str(path.resolve()) not in loaded]
    measure("files_not_loaded", [str(path.relative_to(site)) for path in absent])

    found = distances()
    measure("random_numbers", {name: figures(distance) for name, distance in found.items()})
    measure("largest_distance", max(found.values(), key=lambda distance: (distance != distance, distance)))
    differ, equal = repeated()
    measure("not_repeated_by_a_seed", differ)
    measure("repeated_by_another_seed", equal)
    measure("permutation_faults", permutation_faults())


def _cases(nvidia):
    """The cases for these wheels: cuRAND's only if it has a wheel, because torch does not need cuRAND."""
    from smoke_tests.library_cases import CASES

    return [
        case for case in CASES if case != "curand" or any(name.startswith("nvidia-curand") for name in nvidia)
    ]


def _wrong(case):
    """Each result of *case*, with its error if that is beyond the bound, else None."""
    from smoke_tests.library_cases import bound, described, pairs

    try:
        for name, found, exact in pairs(case):
            error = relative_error(_real(found), _real(exact))
            yield name, None if error <= bound(case, found) else error
    except Exception as error:  # of any kind; the other libraries are still called
        yield "stopped", described(error)


def _real(tensor):
    import torch

    return torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor
