"""Graph convolutions, one per file, each found by the name of its file (retexo/nn/registry.py)."""
