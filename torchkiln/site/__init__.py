"""Writes the catalogue of images as a folder of static pages."""
