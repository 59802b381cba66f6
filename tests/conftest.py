"""What holds for every test."""

from hypothesis import settings

from tests.engine.fixture import engine, podman
from tests.engine.registry import registry

__all__ = ["engine", "podman", "registry"]

# No test is judged by the clock: machines are slow, busy and shared.
settings.register_profile("torchkiln", deadline=None)
settings.load_profile("torchkiln")
