"""Makes the pictures of the report page: `python docs/images/report.py`.

In: `step.py`, and a browser (Debian's package `chromium`).
Out: `report.png` and `report-dark.png`, the top of the page in light and in dark colours.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = "1040,1010"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--virtual-time-budget=2000",
    f"--window-size={SIZE}",
)
SCHEMES = {"report.png": 1, "report-dark.png": 0}  # the browser's numbers of light and dark


def main() -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("no browser was found: install chromium")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / "step.py", folder)
        report = [sys.executable, "-m", "pycompiler", "report", "-o", "page.html", "step.py"]
        subprocess.run(report, cwd=folder, check=True, capture_output=True)
        for name, scheme in SCHEMES.items():
            own = (f"--user-data-dir={folder}/{name}", f"--blink-settings=preferredColorScheme={scheme}")
            picture = f"--screenshot={HERE / name}"
            subprocess.run([browser, *FLAGS, *own, picture, f"{folder}/page.html"], check=True, capture_output=True)


if __name__ == "__main__":
    main()
