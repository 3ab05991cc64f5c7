"""A server of two small models, and a load test beside other compilers.

Install `pip install 'torch-pycompiler[serve]'`, then, from the root of the repository:

    python -m examples.serve.build                       # compile every bucket, write build/serve/
    python -m examples.serve --model text --port 8000    # start
    curl -d '{"text": "good morning"}' localhost:8000/predict
    python -m examples.serve.load --model text           # start, load, report, end

The load test compares: `build --backend all`, then `load --backend all` (eager, torch.compile, ONNX Runtime, OpenVINO).

- The models are a transformer over the bytes of a text, and a convolutional network.  Weights are random.
- A batch is padded to a bucket: a length (16, 32, 64 or 128 tokens) and a size (1, 2, 4 or 8).  The file of
  `pycompiler.save` has an entry for each bucket.  The start loads it, and needs no C++ compiler.
- The policy "run" freezes the model.  `/ready` answers 200 after every bucket has run in its entry; a bucket without an
  entry is an error of the start, with the guard that fails.
- Inputs that wait while a batch runs form the next batch.  No input waits for others to come.
- `/metrics` has the counters of `pycompiler.counters` (`pycompiler_compiles_total` counts recompiles and stays 0),
  latency, queue length, batch sizes, calls by bucket, and memory.

Files in reading order:

- models.py: the models; JSON → tensors, with errors for bad input
- backends.py: this package and the others, behind one interface
- build.py: writes the folder
- app.py: worker, metrics, routes
- __main__.py: starts uvicorn
- load.py: the load test
"""
