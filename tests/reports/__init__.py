"""Silent wrong results that others reported of torch.compile, as programs: eager, ours, and torch.compile beside each other.

`core.py`: a row, and how it is run and compared. `programs_*.py`: the rows, one a report, written anew. `__main__.py`: the table.
"""
