"""Types of millrace.py for editors and type checkers: a lone module can't have a py.typed."""
