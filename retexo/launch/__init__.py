"""Processes of a run: started, brought together over several machines, watched, and ended."""
