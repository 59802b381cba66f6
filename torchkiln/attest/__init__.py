"""Signs and verifies statements about an image.

The statements are in-toto statements in DSSE envelopes: smoke reports, provenance, the gate's decision,
retractions and names. They are signed by a key, or keyless by Sigstore.
"""
