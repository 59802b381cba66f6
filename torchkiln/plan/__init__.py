"""Plans an image from a lock: which layers it has, in which order, and its configuration.

Planning is pure; `plan.load` and `plan.rootfs` read what it needs from the disk.
"""
