"""Settings: their definitions, checked and typed, from the command line and a launcher's environment."""
