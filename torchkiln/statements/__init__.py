"""What is said of an image: reports, provenance, decisions, retractions; as statements, signed or not."""
