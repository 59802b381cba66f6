"""Renders a Dockerfile and builds it with Docker or another engine that speaks its API.

The engine's address, its buildx, the secrets of a build and the bake file are here too.
"""
