"""Prediction of the bytes and memory of a run, before it starts."""
