"""Reads users' tables, arrays and objects into a graph."""
