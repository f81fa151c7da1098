"""Graph convolutions, one per file. model=NAME selects conv/NAME.py
(retexo/models/conv_registry.py).
"""
