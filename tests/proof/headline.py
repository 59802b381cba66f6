"""The image that the tests in tests/proof build and check."""

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
NAME = f"pytorch-cuda:{TAG}"
SITE = "opt/venv/lib/python3.11/site-packages"
