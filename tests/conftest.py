"""What holds for every test."""

from hypothesis import settings

from tests.engine.fixture import engine

__all__ = ["engine"]

# No test is judged by the clock: machines are slow, busy and shared.
settings.register_profile("torchkiln", deadline=None)
settings.load_profile("torchkiln")
