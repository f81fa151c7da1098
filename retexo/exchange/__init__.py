"""Which boundary rows and partial sums each partition sends, and how they are encoded."""
