"""Small functions under test, one file per family of Python or torch features; `test_corpus.py` runs them all."""
