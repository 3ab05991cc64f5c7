"""Minimum cut by Dinic's algorithm, in integers.

In: a directed network with capacities. Out: the vertices on the sink's side of the minimum cut that is nearest to the sink.

Example: source →3→ a →2→ sink has minimum cut 2, and only the sink is on its side.

Capacities have no unit: the partitioner uses bytes. The network has a few times as many vertices as the graph has
nodes, and paths are short.
"""

from __future__ import annotations

INFINITE = 1 << 62


class FlowNetwork:
    """Edges are stored in pairs: edge ``e ^ 1`` is the residual of edge ``e``."""

    def __init__(self, vertices: int) -> None:
        self._out: list[list[int]] = [[] for _ in range(vertices)]
        self._head: list[int] = []
        self._room: list[int] = []

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge of `capacity` from `tail` to `head`."""
        self._out[tail].append(len(self._head))
        self._out[head].append(len(self._head) + 1)
        self._head += (head, tail)
        self._room += (capacity, 0)

    def min_cut_sink_side(self, source: int, sink: int) -> set[int]:
        """Vertices that can still reach `sink` once the flow is maximal."""
        while (level := self._levels(source, sink)) is not None:
            self._block(source, sink, level)
        side = {sink}
        queue = [sink]
        head, room = self._head, self._room
        for v in queue:
            for e in self._out[v]:
                u = head[e]
                if room[e ^ 1] and u not in side:
                    side.add(u)
                    queue.append(u)
        return side

    def _levels(self, source: int, sink: int) -> list[int] | None:
        """Distance to `sink` of every vertex (-1: none), or None if no path from `source` is left."""
        level = [-1] * len(self._out)
        level[sink] = 0
        queue = [sink]
        head, room, out = self._head, self._room, self._out
        for v in queue:
            for e in out[v]:
                u = head[e]
                if level[u] < 0 and room[e ^ 1]:
                    level[u] = level[v] + 1
                    queue.append(u)
        return level if level[source] >= 0 else None

    def _block(self, source: int, sink: int, level: list[int]) -> None:
        """Augment along shortest paths until none is left; a vertex that is a dead end is never visited again."""
        head, room, out = self._head, self._room, self._out
        at = [0] * len(out)
        path: list[int] = []
        v = source
        while True:
            if v == sink:
                flow = min(room[e] for e in path)
                if flow >= INFINITE // 2:
                    raise AssertionError("the network has a path without a finite edge: nothing can be cut")
                for e in path:
                    room[e] -= flow
                    room[e ^ 1] += flow
                first = next(k for k, e in enumerate(path) if not room[e])
                v = head[path[first] ^ 1]
                del path[first:]
                continue
            edges = out[v]
            i = at[v]
            while i < len(edges):
                e = edges[i]
                if room[e] and level[head[e]] == level[v] - 1:
                    break
                i += 1
            at[v] = i
            if i < len(edges):
                path.append(edges[i])
                v = head[edges[i]]
            elif path:
                v = head[path.pop() ^ 1]
                at[v] += 1
            else:
                return
