"""NumPy arrays in captured code: calls of NumPy become graph nodes on tensors.

In: calls of NumPy's functions, methods and operators.  Out: `Array` values (`capture/values/array.py`), or Python numbers.

Read in this order:

- `numpy_calls.py`: calls of functions, methods and operators.
- `numpy_checks.py`: calls that NumPy treats differently from torch.
- `numpy_layouts.py`: strides of results as in NumPy.
- `numpy_numbers.py`: NumPy scalars with known values.
- `constant_arrays.py`: arrays with known contents.
- `random_arrays.py`: random numbers.
- `error_state.py`: `numpy.errstate`.
"""
