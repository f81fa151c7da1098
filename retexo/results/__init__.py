"""Files that a run writes (checkpoint, predictions, logs), and reports on them."""
