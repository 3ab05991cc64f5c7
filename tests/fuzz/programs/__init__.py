"""Fuzzer of the compiler: tensor programs by seed, as source, compared with eager; see `generate.py` and `compare.py`."""
