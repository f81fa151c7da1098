"""Settings: definitions, checks, and composition from files and the command line."""
