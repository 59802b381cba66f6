"""The checks that run inside an image. Never on sys.path: runner.py and one.py load the package by path."""
