"""Applies tables of changes to a partition directory; its nodes keep their partitions."""
