"""Link prediction before training: split of the pairs, baselines, untrained embeddings."""
