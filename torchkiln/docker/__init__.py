"""Renders Dockerfiles and builds them with Docker's BuildKit.

Also finds the engine, loads images into it, and writes the bake file and the secrets of a build.
"""
