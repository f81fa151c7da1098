"""For data owners: secure sums, halo lists of foreign ids, disclosure limits."""
