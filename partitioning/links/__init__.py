"""Link prediction, before training: split of the pairs, baselines, and embeddings from the graph
alone.
"""
