"""Training algorithms, one a file: lazy message passing and the baselines."""
