"""Runs the smoke tests in an image and makes a report of the results.

The suite is in `smoke_tests/`. The host judges each result again; nothing inside the image decides about
it.
"""
