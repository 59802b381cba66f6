"""``python -m torchkiln``."""

from torchkiln.cli import main

if __name__ == "__main__":
    main()
