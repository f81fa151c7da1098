"""Link prediction: which pairs of nodes train, validate and are tested, and what is left of the graph then."""
