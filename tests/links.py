"""Collectives carried out message by message, each link's load counted: an independent answer.

A torus is a grid of devices; along an axis each device has a link to the next one and one to the one
before, the last and the first being joined where the axis is a ring. A ring of 2 has both links. Loads
are in blocks: the shard of one device of an AllGather, what one device sends another in an AllToAll.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, permutations, product
from math import prod

import sympy

Device = tuple[int, ...]
Link = tuple[Device, int, int]
Loads = Counter  # of Link


@dataclass(frozen=True)
class Torus:
    """A grid of devices: the size of each axis, and which axes are rings.

    A collective over parts of the axes runs in groups: `sizes` are the parts', `outer` and `inner` what
    lies on the same axes outside and inside of them. All groups run at once, on the same links.
    """

    sizes: tuple[int, ...]
    rings: tuple[bool, ...]
    one_way: bool = False
    outer: tuple[int, ...] = ()
    inner: tuple[int, ...] = ()

    def outside(self, axis: int) -> int:
        """Give how many times the part lies on its axis, one beside the other."""
        return self.outer[axis] if self.outer else 1

    def stride(self, axis: int) -> int:
        """Give the places from a device of a group to the next."""
        return self.inner[axis] if self.inner else 1

    def closed(self, axis: int) -> bool:
        """Say whether a group goes all the way around a ring."""
        return self.rings[axis] and self.outside(axis) == 1

    def whole(self, axis: int) -> int:
        """Give the devices along an axis."""
        return self.outside(axis) * self.sizes[axis] * self.stride(axis)

    def member(self, device: Device, axis: int) -> int:
        """Give a device's place in its group."""
        return device[axis] // self.stride(axis) % self.sizes[axis]

    def group(self, device: Device) -> list[Device]:
        """List the devices of a device's group."""
        return [
            other
            for other in self.devices
            if all(
                (a - b) % self.stride(i) == 0
                and a // (self.stride(i) * n) == b // (self.stride(i) * n)
                for i, (a, b, n) in enumerate(zip(device, other, self.sizes, strict=True))
            )
        ]

    @property
    def devices(self) -> list[Device]:
        """All devices, by their places."""
        return list(product(*(range(self.whole(axis)) for axis in range(len(self.sizes)))))

    @property
    def ports(self) -> int:
        """The links by which the device with the fewest receives."""
        incoming = Counter()
        for device in self.devices:
            for axis, way in product(range(len(self.sizes)), (1, -1)):
                other = self.next(device, axis, way)
                if other is not None and not (self.one_way and self.rings[axis] and way < 0):
                    incoming[other] += 1
        return min(incoming.values())

    def next(self, device: Device, axis: int, way: int) -> Device | None:
        """Go one step, None where a line ends."""
        n, at = self.whole(axis), device[axis] + way
        if not self.rings[axis] and not 0 <= at < n:
            return None
        return (*device[:axis], at % n, *device[axis + 1 :])

    def step(self, device: Device, axis: int, way: int) -> tuple[list[Link], Device]:
        """Go to the next device of the group: give the links on the way, and the device."""
        links: list[Link] = []
        for _ in range(self.stride(axis)):
            links.append((device, axis, way))
            after = self.next(device, axis, way)
            assert after is not None
            device = after
        return links, device

    # --- AllGather ---

    def spread(self, start: Device, axis: int) -> Iterator[tuple[list[Link], Fraction, Device]]:
        """Carry a block from a device to all others along an axis, hop by hop, both ways round."""
        n = self.sizes[axis]
        whole, half = Fraction(1), Fraction(1, 2)
        place = self.member(start, axis)
        if self.closed(axis) and self.one_way:
            reach = {1: [whole] * (n - 1)}
        elif self.closed(axis):
            far = [whole] * ((n - 1) // 2) + ([half] if n % 2 == 0 else [])
            reach = {1: far, -1: far}
        else:
            reach = {1: [whole] * (n - 1 - place), -1: [whole] * place}
        for way, amounts in reach.items():
            at = start
            for amount in amounts:
                links, at = self.step(at, axis, way)
                yield links, amount, at

    def gather(self, order: Sequence[int]) -> Loads:
        """Carry the block of each device to all, axis by axis."""
        loads: Loads = Counter()
        for source in self.devices:
            holders = {source: Fraction(1)}
            for axis in order:
                for holder in list(holders):
                    for links, amount, after in self.spread(holder, axis):
                        for link in links:
                            loads[link] += amount
                        holders[after] = holders.get(after, Fraction(0)) + amount
            assert holders == dict.fromkeys(self.group(source), 1)
        return loads

    def gathered(self) -> Fraction:
        """Give the busiest link's load where parts of each block take the axes in other orders.

        The shares of the orders are those that make the axes equally busy.
        """
        orders = list(permutations(range(len(self.sizes))))
        runs = {order: self.gather(order) for order in orders}
        best = min(max(run.values()) for run in runs.values())
        axes = range(len(self.sizes))
        for some in combinations(orders, len(self.sizes)):
            busiest = [
                [max(n for link, n in runs[o].items() if link[1] == axis) for o in some]
                for axis in axes
            ]
            rows = [[a - b for a, b in zip(busiest[0], row, strict=True)] for row in busiest[1:]]
            system = sympy.Matrix([*rows, [1] * len(some)])
            if system.det() == 0:
                continue
            shares = system.solve(sympy.Matrix([0] * len(rows) + [1]))
            if min(shares) < 0:
                continue
            total: Loads = Counter()
            for order, share in zip(some, shares, strict=True):
                for link, amount in runs[order].items():
                    total[link] += amount * Fraction(int(share.p), int(share.q))
            best = min(best, max(total.values()))
        return best

    # --- AllToAll ---

    def ways(self, n: int, ring: bool, start: int, end: int) -> list[tuple[int, int, Fraction]]:
        """Give the shortest ways from place to place of an axis: direction, steps, share."""
        ahead = (end - start) % n
        if ring and self.one_way:
            return [(1, ahead, Fraction(1))]
        if not ring:
            return (
                [(1, end - start, Fraction(1))] if end > start else [(-1, start - end, Fraction(1))]
            )
        back = n - ahead
        if ahead == back:
            return [(1, ahead, Fraction(1, 2)), (-1, back, Fraction(1, 2))]
        return [(1, ahead, Fraction(1))] if ahead < back else [(-1, back, Fraction(1))]

    def exchange(self) -> Loads:
        """Send a block from each device to each other one, one axis after the other."""
        loads: Loads = Counter()
        pairs = [(one, other) for one in self.devices for other in self.group(one)]
        for source, target in pairs:
            at = source
            for axis, n in enumerate(self.sizes):
                if at[axis] == target[axis]:
                    continue
                start, end = self.member(at, axis), self.member(target, axis)
                for way, steps, share in self.ways(n, self.closed(axis), start, end):
                    here = at
                    for _ in range(steps):
                        links, here = self.step(here, axis, way)
                        for link in links:
                            loads[link] += share
                    assert here[axis] == target[axis]
                at = (*at[:axis], target[axis], *at[axis + 1 :])
        return loads

    def exchanged(self) -> Fraction:
        """Give the busiest link's load of an AllToAll."""
        return max(self.exchange().values())

    def swapped(self) -> Fraction:
        """Give the busiest link's load where the two devices of each pair send each other a block."""
        loads: Loads = Counter()
        for device in self.devices:
            place = self.member(device, 0)
            for way, steps, share in self.ways(2, self.closed(0), place, 1 - place):
                here = device
                for _ in range(steps):
                    links, here = self.step(here, 0, way)
                    for link in links:
                        loads[link] += share
        return max(loads.values())


@dataclass(frozen=True)
class Nodes:
    """Nodes of devices, every two of which reach each other: inside a node, and across."""

    across: int
    inside: int

    def gather(self) -> tuple[int, int]:
        """AllGather: give the blocks that a device sends inside and across, the most of any."""
        devices = list(product(range(self.across), range(self.inside)))
        held = {device: {device} for device in devices}
        sent: Counter = Counter()
        before = {device: set(blocks) for device, blocks in held.items()}
        for node, place in devices:  # each to its like in the other nodes
            for other in range(self.across):
                if other != node:
                    sent["across", node, place] += len(before[node, place])
                    held[other, place] |= before[node, place]
        before = {device: set(blocks) for device, blocks in held.items()}
        for node, place in devices:
            for other in range(self.inside):
                if other != place:
                    sent["inside", node, place] += len(before[node, place])
                    held[node, other] |= before[node, place]
        assert all(blocks == set(devices) for blocks in held.values())
        return self._most(sent)

    def scatter(self) -> tuple[int, int]:
        """ReduceScatter: the same of partial sums, each block to the device that keeps it."""
        devices = list(product(range(self.across), range(self.inside)))
        sums = {(device, block): {device} for device in devices for block in devices}
        sent: Counter = Counter()
        for node, place in devices:  # inside: what is for a place goes to that place
            for block in devices:
                if block[1] != place:
                    sent["inside", node, place] += 1
                    sums[(node, block[1]), block] |= {(node, place)}
        for node, place in devices:
            for other in range(self.across):
                if other != node:
                    sent["across", node, place] += 1
                    block = (other, place)
                    sums[block, block] |= sums[(node, place), block]
        assert all(sums[device, device] == set(devices) for device in devices)
        return self._most(sent)

    def exchange(self) -> tuple[int, int]:
        """AllToAll: each block straight to its device."""
        devices = list(product(range(self.across), range(self.inside)))
        sent: Counter = Counter()
        for source, target in product(devices, repeat=2):
            if source != target:
                sent["inside" if source[0] == target[0] else "across", *source] += 1
        return self._most(sent)

    def _most(self, sent: Counter) -> tuple[int, int]:
        def most(where: str) -> int:
            return max((n for key, n in sent.items() if key[0] == where), default=0)

        return most("inside"), most("across")


def count(sizes: Sequence[int]) -> int:
    """Count the devices."""
    return prod(sizes)
