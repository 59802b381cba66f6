"""Decides whether an image may be published.

From smoke reports, a policy and a lock it returns a cleared image, or the list of what is missing. Pure.
"""
