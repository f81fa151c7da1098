"""Graph convolutions, one per file, each found by the name of its file (retexo/models/conv_registry.py)."""
