"""Names of the scores of ranked links (see retexo/scores.py, too) and of a spectral filter."""

CUTOFFS = (10, 20, 50)
"""k of hits@k, and of the scores of a source's list."""
LIST_SCORES = {"recall": "recall", "ndcg": "NDCG", "precision": "precision", "map": "MAP"}
"""Scores of the first k places of a source's list, name -> title, see score_ranks.py."""
OF_LISTS = tuple(f"{name}@{k}" for k in CUTOFFS for name in LIST_SCORES)
FILTER = ("spectral", "spectral_power", "spectral_degree_power", "spectral_eigenvalue_power")
"""Names in meta.json and model.json of what makes a spectral embedding (K, a, b, c)."""
