"""Partitions that data owners build from their own tables, each where its data lies."""
