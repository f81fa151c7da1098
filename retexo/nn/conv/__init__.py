"""Graph convolutions, one a file; each registers itself."""
