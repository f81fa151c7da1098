"""Reads files of users and of the program with clear errors, writes them safely, fetches them."""
