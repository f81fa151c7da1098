"""Layers: graph convolutions, the stage that is trained around one, and sums over in-edges."""
