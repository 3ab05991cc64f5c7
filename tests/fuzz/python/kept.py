"""Rows of state that lives across calls: counts, histories, the best value so far, tables with changing keys, logs.

Each call adds to the state, and the changes between calls (`CHANGES`, several times the same one) give other
numbers and strings. A compiled program may have one entry for all of them; the entry must be right for each.
"""

from __future__ import annotations

KEYS = ("<str>", "<int>", "f'{<str>}/{<int>}'", "s + 'k'", "n", "<float>", "(<str>, <int>)")
"""Keys of table lookups."""

STATEMENTS: tuple[str, ...] = (
    *(f"table[{key}] = table.get({key}, 0) + <int>" for key in ("s", "n", "<str>", "f'{s}/{n}'")),
    *(f"tdict.setdefault({key}, []).append(<any>)" for key in ("s", "f'{s}!'")),
    *(f"LOG.append(table.get({key}))" for key in KEYS),
    *(f"LOG.append({key} in table)" for key in KEYS),
    *(f"LOG.append(table.pop({key}, None))" for key in ("s", "n", "<str>")),
    *(f"table.setdefault({key}, <any>)" for key in ("s", "n", "<str>")),
    "table[f'{s}:{n}'] = <tensor>", "table['step %d' % n] = <int>", "table[str(n)] = n", "table[s.upper()] = <int>",
    "LOG.append(f'{s}={n:>4} {<float>:.3f} {s!r}')", "LOG.append('%s %5d' % (s, n))", "LOG.append('{}/{}'.format(s, n))",
    "rec.extra = f'step {n}'", "rec.k = rec.k + n", "mod.last = s + str(n)", "LOG.append((f'{s}{n}', s, n))",
    "LOG.append(bag | {<int>})", "LOG.append(s in bag)", "bag.add(s)", "bag.add(f'{s}{n}')", "LOG.append(n in bag)",
    "items.append(n)", "LOG.append(sum(items))", "LOG.append(max(items))", "LOG.append(sum(items) / len(items))",
    "LOG.append(items[-2:])", "LOG.append(sum(items[-3:]))", "LOG.append(n in items)", "LOG.append(len(items))",
    "recent.append(n)", "recent.append(<float>)", "recent.appendleft(<any>)", "LOG.append(sum(recent))", "LOG.append(len(recent))",
    "recent.append(<scalar>)", "LOG.append(recent[-1])", "x = x * sum(recent)", "LOG.append(list(recent))",
    "mod.best = min(mod.best, n)", "mod.mean_of = 0.9 * mod.mean_of + 0.1 * n", "x = x * mod.mean_of",
    "if n < mod.best: mod.best = n", "if mod.mean_of < n / 3: mod.mean_of = mod.mean_of + 1.5", "LOG.append(mod.mean_of > mod.best)",
    "mod.calls += 1", "if mod.calls % 2 == 0: x = x + 1", "groups[s].append(n)", "groups[f'{s}'].append(<tensor>)",
    "LOG.append(len(groups[s]))", "tally[s] += 1", "tally[n] += n", "tally[s] = tally[s] + 2", "LOG.append(tally[s])",
)  # fmt: skip
COMPOUND = (
    "if s not in table:\n    table[s] = 0\ntable[s] += 1",
    "if s in table:\n    <block>\nelse:\n    table[s] = <int>",
    "try:\n    table[s] += 1\nexcept KeyError:\n    table[s] = 1\n    <block>",
    "items.append(n)\nif len(items) > 4:\n    items.pop(0)",
    "if n not in bag:\n    bag.add(n)\n    <block>",
    "<new:h> = mod.register_forward_hook(lambda m, given, result: LOG.append(n))\nbrk(None)\nmod(x)\n<new:h>.remove()",
)
SETUP = (
    "recent = collections.deque([1], maxlen=3)", "groups = collections.defaultdict(list)", "tally = collections.Counter()",
    "mod.best, mod.mean_of = 100.0, 0.5",
)  # fmt: skip
CHANGES = (
    "n = n + 1", "n = n + 1; s = s + 'b'", "s = 'abcab'[n % 5]; n = n + 1", "n = n * 2.5 + 1", "n = -n - 1", "s = s[1:] + 'xyz'[n % 3]; n += 1",
    "n = {1: 2.5, 2.5: 0.0, 0.0: -0.0}.get(n, 1)", "n = n + 2**62", "s = str(n); n = n + 1", "n = not n", "x = x + 1; n = n + 3",
)  # fmt: skip
