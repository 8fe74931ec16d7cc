#!/usr/bin/env python3
"""Reads what `sluice eval --dump-lists FILE` writes, with the standard library alone.

    from read_lists import read
    for answer, lists in read("lists.bin"):
        # answer: {"task": ..., "document": ..., "algorithm": ..., "budget": ..., "length": ...}
        for l in lists:      # in the order of the steps: layer, list, position, unit_tokens, mass, ids, shares, scores (NaN: none)
            print(answer["algorithm"], l.layer, l.position, l.mass, l.ids[:5])

As a program it prints, for each algorithm and budget, the mean mass of its lists by layer.
"""
import array
import collections
import json
import struct
import sys

MAGIC = b"sluice-lists 2\n"
List = collections.namedtuple("List", "layer list position unit_tokens mass ids shares scores")


def numbers(kind, data):
    out = array.array(kind)
    out.frombytes(data)
    if sys.byteorder == "big":
        out.byteswap()
    return out


def parse_list(data):
    if len(data) < 28:
        raise ValueError("a list of %d bytes" % len(data))
    layer, number, position, unit, n = struct.unpack_from("<5i", data)
    (mass,) = struct.unpack_from("<d", data, 20)
    if len(data) != 28 + 12 * n:
        raise ValueError("a list of %d units has %d bytes" % (n, len(data)))
    return List(layer, number, position, unit, mass, numbers("i", data[28:28 + 4 * n]), numbers("f", data[28 + 4 * n:28 + 8 * n]), numbers("f", data[28 + 8 * n:]))


def records(file):
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError("not a file of lists, or of another version")
    while head := file.read(8):
        size, kind = struct.unpack("<2I", head.ljust(8, b"\0"))
        data = file.read(size)
        if len(head) < 8 or len(data) < size:
            return  # the run was killed in the middle of a record
        yield kind, data


def read(path):
    """Yields (answer, [List, ...]); an answer that a killed run began is there with the lists that it has."""
    answer, lists = None, []
    with open(path, "rb") as file:
        for kind, data in records(file):
            if kind == 1:
                if answer is not None:
                    yield answer, lists
                answer, lists = json.loads(data), []
            elif kind == 2:
                lists.append(parse_list(data))
    if answer is not None:
        yield answer, lists


def main():
    masses = collections.defaultdict(lambda: [0.0, 0])
    for answer, lists in read(sys.argv[1]):
        for l in lists:
            m = masses[answer["algorithm"], answer["budget"], l.layer]
            m[0] += l.mass
            m[1] += 1
    for (algorithm, budget, layer), (total, n) in masses.items():
        print("%-24s %6d  layer %3d  mass %.4f of %d lists" % (algorithm, budget, layer, total / n, n))


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as e:
        sys.exit("%s: %s" % (sys.argv[1], e))
