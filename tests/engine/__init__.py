"""A Docker engine of the tests' own, where the machine has none: made of Debian packages, gone afterwards."""
