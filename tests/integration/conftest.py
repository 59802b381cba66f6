"""Fixtures of several integration tests."""

from tests.docker_scene import scene

__all__ = ["scene"]
