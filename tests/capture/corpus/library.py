"""Functions of the standard library that are written in Python: inlined, or a graph break, always with eager's result."""

from __future__ import annotations

import ast
import calendar
import collections
import colorsys
import copy
import difflib
import fractions
import graphlib
import heapq
import importlib
import json
import posixpath
import shlex
import statistics
import string
import textwrap
import urllib.parse

import torch
from capture.harness import ANY, case

X = torch.arange(4.0)


def _library(fn):
    return case(X, breaks=ANY, recompiles=999, where=False)(fn)


@_library
def text_wrapping(x):
    return x + 1, textwrap.wrap("the quick brown fox jumps over the lazy dog", 12), textwrap.dedent("  a\n  b")


@_library
def sequence_matching(x):
    return x + 1, difflib.SequenceMatcher(None, "abcd", "bcde").ratio()


@_library
def statistics_of_numbers(x):
    return x + 1, statistics.mean([1, 2, 3, 4]), statistics.median([1, 5, 2]), statistics.stdev([1, 2, 3])


@_library
def colours(x):
    return x + 1, colorsys.rgb_to_hsv(0.1, 0.2, 0.3), colorsys.hls_to_rgb(0.1, 0.2, 0.3)


@_library
def rational_numbers(x):
    return x + 1, str(fractions.Fraction(1, 3) + fractions.Fraction(1, 6)), fractions.Fraction("0.25") * 4


@_library
def heap_merge(x):
    return x + 1, list(heapq.merge([1, 4], [2, 3]))


@_library
def templates(x):
    return x + 1, string.Template("$a and ${b}").substitute(a=1, b=2), string.capwords("ab cd")


@_library
def deep_copies(x):
    return x + 1, copy.deepcopy({"a": [1, {2}], "b": (3, [4])}), copy.copy([1, 2])


@_library
def calendars(x):
    return x + 1, calendar.monthrange(2024, 2), calendar.isleap(2000)


@_library
def shell_words(x):
    return x + 1, shlex.split("a 'b c' d"), shlex.quote("a b")


@_library
def paths(x):
    return x + 1, posixpath.join("a", "..", "b"), posixpath.normpath("a/../b//c"), posixpath.splitext("a/b.txt")


@_library
def addresses(x):
    return x + 1, urllib.parse.urlparse("http://a.b/c?d=e#f").path, urllib.parse.quote("a b/c")


@_library
def topological_order(x):
    order = graphlib.TopologicalSorter({"d": {"c"}, "c": {"b"}, "b": {"a"}}).static_order()
    return x + 1, list(order)


@_library
def counting(x):
    return x + 1, collections.Counter("abracadabra").most_common(2), collections.ChainMap({"a": 1}, {"b": 2})["b"]


@_library
def literals(x):
    return x + 1, ast.literal_eval("[1, (2, 3)]")


@_library
def imports_and_json_by_keyword(x):
    return x + 1, importlib.import_module(name="json").loads("[1]"), importlib.import_module("json", "torch").__name__


@case(X, breaks="import")
def import_of_a_relative_name(x):
    return x + 1, importlib.import_module(".decoder", package="json").__name__


@case(X, breaks="skipped-call")
def json_of_a_keyword(x):
    return x + 1, json.loads(s='{"a": [1]}')
