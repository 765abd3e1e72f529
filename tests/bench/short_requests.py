#!/usr/bin/env python3
"""Requests a second of one node that has nothing to compute: what a change costs, or spares, a request.

    python3 tests/bench/short_requests.py --binary before=PATH/actor-node --binary after=PATH/actor-node [--rounds 7]
                                    [--seconds 3] [--concurrency 16,128] [--tokens 1,16] [--json FILE]

A node a build (`--role all`, engine `fake` at zero cost), all up at once and measured in turn within each round, which each
begins in its turn. The client is that of `cluster.py`: a process of its own, `concurrency` connections with one streamed
completion of `tokens` tokens after the other, every stream compared with what the first build said to the prompt.

`node` is the processor time of the node's process for each request, which other work on the machine disturbs less than
requests a second. `ratio` is to the first build in the same round at the same load; the table has the medians of the
rounds, and the least and the most.
"""
import argparse
import contextlib
import json
import os
import statistics
import tempfile

from cluster import Process, measure, reference

FIGURES = ("rps", "node")


def start(args, stack, folder):
    nodes = {}
    for name, binary in args.binary:
        command = [binary, "--name", name, "--engine", "fake", "--http-listen", "127.0.0.1:0", "--log-level", "warn"]
        nodes[name] = Process(stack, name, command, folder)
    for node in nodes.values():
        node.wait(lambda node=node: node.ask("GET", "/readiness")[0] == 200)
    return nodes


def show(seen, first):
    print("\n| tokens, concurrency | build | requests/s | p50 ms | node, µs a request | ratio of requests/s | ratio of µs |")
    print("|---|---|---|---|---|---|---|")
    for load, rounds in seen.items():
        for name in rounds[0]:
            row = {figure: statistics.median(r[name][figure] for r in rounds) for figure in ("rps", "p50", "node")}
            cells = []
            for figure in FIGURES:
                ratios = [r[name][figure] / r[first][figure] for r in rounds]
                cells.append(f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
            ratios = " | ".join(cells) if name != first else " | "
            print(f"| {load[0]}, {load[1]} | {name} | {row['rps']:.0f} | {row['p50']:.2f} | {row['node']:.1f} | {ratios} |")


def named(text):
    name, _, path = text.partition("=")
    if not path:
        raise argparse.ArgumentTypeError("use NAME=PATH")
    return name, os.path.abspath(path)


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=named, action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--concurrency", type=numbers, default=[16, 128])
    parser.add_argument("--tokens", type=numbers, default=[1, 16])
    parser.add_argument("--lazy-ack", action="store_true", help="a client that acknowledges when it likes, as most do")
    parser.add_argument("--json", help="where all figures of all rounds go")
    args = parser.parse_args()
    names = [name for name, _ in args.binary]
    seen = {(tokens, level): [] for tokens in args.tokens for level in args.concurrency}
    with contextlib.ExitStack() as stack:
        nodes = start(args, stack, stack.enter_context(tempfile.TemporaryDirectory()))
        expected = {tokens: reference(nodes[names[0]], tokens) for tokens in args.tokens}
        for number in range(args.rounds):
            turn = number % len(names)
            for load, rounds in seen.items():
                rounds.append({})
                for name in names[turn:] + names[:turn]:
                    side = ([nodes[name]], [nodes[name].address])
                    got = measure(args, side, load[1], expected[load[0]], load[0])
                    rounds[-1][name] = {"rps": got["rps"], "p50": got["p50"], "node": got["cpu_us"][name]}
                print(json.dumps({"round": number, "load": load, **rounds[-1]}), flush=True)
    # Whichever was measured first in a round, they are shown in one order.
    seen = {load: [{name: r[name] for name in names} for r in rounds] for load, rounds in seen.items()}
    show(seen, names[0])
    if args.json:
        with open(args.json, "w") as out:
            json.dump([{"load": load, "rounds": rounds} for load, rounds in seen.items()], out, indent=1)


if __name__ == "__main__":
    main()
