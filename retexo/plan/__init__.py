"""What a run will send and hold, before it runs."""
