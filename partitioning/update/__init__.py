"""Applies tables of changes to an existing partition directory, without partitioning again."""
