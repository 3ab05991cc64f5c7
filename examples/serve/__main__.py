"""Start the server.

python -m examples.serve --model text --port 8000
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import uvicorn

from examples.serve.app import Settings, create_app
from examples.serve.backends import BACKENDS, NotServable
from examples.serve.build import FOLDER
from examples.serve.models import SPECS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.serve", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=SPECS, default="text")
    parser.add_argument("--backend", choices=BACKENDS, default="ours")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"the folder of the build ({FOLDER})")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=1, help="threads of a call (1)")
    parser.add_argument("--queue", type=int, default=256, help="requests that may wait (256); more are refused")
    asked = parser.parse_args(arguments)
    if missing := BACKENDS[asked.backend].missing():
        parser.error(missing)
    settings = Settings(asked.model, asked.folder / asked.model, asked.backend, asked.threads, asked.queue)
    try:
        app = create_app(settings)
    except NotServable as e:
        parser.error(str(e))
    uvicorn.run(app, host=asked.host, port=asked.port, log_level="warning", access_log=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
