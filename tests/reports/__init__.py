"""Programs from reports of silent wrong results in torch.compile: eager, pycompiler and torch.compile side by side.

`core.py`: a row, its run and its comparison. `programs_*.py`: the rows, one per report, written anew.
`__main__.py`: the table.
"""
