"""The checks that run inside an image. It is never on sys.path: runner.py and one.py load it by path."""
