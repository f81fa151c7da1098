"""Rows and edges as bytes."""
