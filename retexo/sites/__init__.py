"""Owners that keep their data: what they tell each other of nodes that their edges share."""
