"""Plans an image from a lock: its layers, their order, and its configuration.

Planning is pure; `plan.load` and `plan.rootfs` read its inputs from the disk.
"""
