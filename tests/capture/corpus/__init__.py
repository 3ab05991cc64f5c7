"""Small functions under test, one file a family of Python's or torch's features; `test_corpus.py` runs them all."""
