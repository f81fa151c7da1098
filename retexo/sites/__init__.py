"""For data owners: TLS, credentials, hub, secure sums, disclosure limits."""
