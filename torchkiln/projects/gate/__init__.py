"""Decides what the reports of a parent image prove about the image of a project."""
