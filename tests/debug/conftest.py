"""A browser for the tests of the report's page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.debug import browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    if browser.find() is None:
        pytest.skip("no browser is installed (Debian's package chromium)")
    with browser.Browser() as made:
        try:
            made.call("Browser.getVersion")
        except (AssertionError, OSError) as error:
            pytest.skip(f"{browser.find()} is installed and does not start here: {error}")
        yield made
