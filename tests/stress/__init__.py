"""Long runs by command, short ones in the tests: `python -m tests.stress --help`."""
