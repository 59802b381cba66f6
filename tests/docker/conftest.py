"""Fixtures of several integration tests."""

from tests.docker.scene import scene

__all__ = ["scene"]
