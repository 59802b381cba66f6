"""A cleared image and what is said of it, into a registry; and from there back to what is proved."""
