"""What finished runs say together: tables, tests, figures, one page."""
