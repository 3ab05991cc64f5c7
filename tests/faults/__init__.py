"""Faults put into the compiler, and the one command that leads from the symptom to each; `python -m tests.faults`."""
