"""Data owners who do not trust the network: TLS, credentials, hub, secure sums, disclosure
limits.
"""
