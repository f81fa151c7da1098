"""Boundary rows: who needs which, which rows or partial sums are sent, as which bytes, and when."""
