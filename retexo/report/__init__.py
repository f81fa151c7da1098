"""What finished runs say together: read them, group them, compare them, draw them. Nothing here trains."""
