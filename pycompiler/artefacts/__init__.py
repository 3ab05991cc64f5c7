"""Compiled callables as files: `save.save` writes the entries of a callable, `load.load` gives them to a function in
another process.

In: a compiled callable, or a file.  Out: a file, or a compiled callable with the file's entries.

Files in reading order:

- data.py: the records of a file, and the classes whose objects may be in it
- save.py: a compiled callable → a file
- encode.py: objects → records
- file.py: the file format, and the facts that must be equal to read it
- load.py: a file → a compiled callable
- decode.py: records → objects
- aot_compile.py: torch's `aot_compile` and `load_compiled_function`: the function is found by its name
- cache_bundle.py: the kernels of this process as bytes, for the kernel cache of another machine
"""
