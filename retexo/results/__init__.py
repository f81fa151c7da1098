"""What a run leaves on disk: checkpoint, predictions, metrics; each file whole or not at all."""
