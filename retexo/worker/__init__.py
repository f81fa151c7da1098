"""One worker process: read its part, join the others, train or infer, report."""
