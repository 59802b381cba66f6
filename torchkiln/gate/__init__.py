"""Decides whether an image may be published.

It takes smoke reports, a policy and a lock, and gives a cleared image or a list of what is missing. It is
pure.
"""
