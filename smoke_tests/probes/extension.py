"""Build triangular.cu into FOLDER with torch.utils.cpp_extension, as a package's setup.py does."""

import json
import os
import shutil
import subprocess
import sys

import setuptools
import torch  # noqa: F401 - before cpp_extension, which loads its libraries
from torch.utils import cpp_extension

folder = sys.argv[1]
source = shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "triangular.cu"), folder)
os.chdir(folder)
setuptools.setup(
    name="kiln",
    ext_modules=[cpp_extension.CUDAExtension("kiln", [source])],
    # Without ninja, which not every image has; the build is the same.
    cmdclass={"build_ext": cpp_extension.BuildExtension.with_options(use_ninja=False)},
    script_args=["build_ext", "--build-lib", folder, "--build-temp", folder],
)
nvcc = os.path.join(cpp_extension.CUDA_HOME, "bin", "nvcc")
version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
library = next(name for name in sorted(os.listdir(folder)) if name.endswith(".so"))
print()
print(
    json.dumps(
        {
            "library": os.path.join(folder, library),
            "cuda_home": cpp_extension.CUDA_HOME,
            "nvcc": next((line for line in version.splitlines() if "release" in line), version),
        }
    )
)
