"""Heterogeneous graphs: who needs which rows, lazy training layer by layer, answers, and other trainers."""
