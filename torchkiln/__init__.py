"""torchkiln: builds, proves and publishes PyTorch GPU container images."""

__version__ = "0.1.0"
