"""Graph convolutions, one per file: model=NAME selects conv/NAME.py (models/network.py)."""
