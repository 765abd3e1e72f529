#!/usr/bin/env python3
"""Requests a second of one node that has nothing to compute: what a change costs, or spares, a request.

    python3 tests/bench/short_requests.py --binary before=PATH/actor-node --binary after=PATH/actor-node [--rounds 7]
                                    [--seconds 3] [--concurrency 16,128] [--tokens 1,16] [--json FILE]

A node a build (`--role all`, engine `fake` at zero cost), all up at once and measured in turn within each round, which each
begins in its turn. The client is that of `cluster.py`: a process of its own, `concurrency` connections with one streamed
completion of `tokens` tokens after the other, every stream compared with what the first build said to the prompt.

    python3 tests/bench/short_requests.py --binary ... --instructions [--rounds 3]

`node` is the processor time of the node's process for each request, which other work on the machine disturbs less than
requests a second. `ratio` is to the first build in the same round at the same load; the table has the medians of the
rounds, and the least and the most.

On a machine whose speed varies by more than what is looked for, `--instructions` has Valgrind count instructions in place
of time: those of a node that answers 3,000 requests less those of one that answers 1,000, by 2,000. Two rounds
differ by a fraction of a per cent, for how often a thread looks for work is a matter of time.
"""
import argparse
import contextlib
import json
import os
import re
import statistics
import tempfile
import threading

from cluster import PROMPTS, Connection, Process, body, measure, prompts, reference, text_of

FIGURES = ("rps", "node")


def start(args, stack, folder):
    nodes = {}
    for name, binary in args.binary:
        command = [binary, "--name", name, "--engine", "fake", "--http-listen", "127.0.0.1:0", "--log-level", "warn"]
        nodes[name] = Process(stack, name, command, folder)
    for node in nodes.values():
        node.wait(lambda node=node: node.ask("GET", "/readiness")[0] == 200)
    return nodes


def ask(address, numbers, tokens):
    """Requests one after the other over one connection."""
    connection = Connection(address, True)
    for number in numbers:
        sent = body(prompts()[number % PROMPTS], tokens)
        head = "POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        connection.ask(number, f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
        while not connection.ended():
            pass
        text_of(connection.buffer)


def instructions(name, binary, requests, connections, tokens):
    """Those of a node's whole life, in which it answers so many requests."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", binary, "--name", name]
        node = Process(stack, name, [*command, "--engine", "fake", "--http-listen", "127.0.0.1:0", "--log-level", "warn"], folder)
        node.wait(lambda: node.ask("GET", "/readiness")[0] == 200)
        asking = [
            threading.Thread(target=ask, args=(node.address, range(first, requests, connections), tokens))
            for first in range(connections)
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        node.process.terminate()
        node.process.wait(60)
        with open(node.log) as log:
            return int(re.search(r"Collected : (\d+)", log.read())[1])


def count(args):
    names, seen = [name for name, _ in args.binary], []
    load = args.tokens[0], args.concurrency[0]
    for number in range(args.rounds):
        seen.append({})
        for name, binary in args.binary:
            few, many = (instructions(name, binary, requests, load[1], load[0]) for requests in (1000, 3000))
            seen[-1][name] = (many - few) / 2000
        print(json.dumps({"round": number, **seen[-1]}), flush=True)
    print(f"\nInstructions a request of {load[0]} tokens, {load[1]} at once\n\n| build | instructions | ratio |\n|---|---|---|")
    for name in names:
        ratios = [r[name] / r[names[0]] for r in seen]
        print(f"| {name} | {statistics.median(r[name] for r in seen):.0f} | {statistics.median(ratios):.3f} "
              f"({min(ratios):.3f} to {max(ratios):.3f}) |")


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
    parser.add_argument("--instructions", action="store_true", help="count them at the first load, in place of time")
    args = parser.parse_args()
    if args.instructions:
        return count(args)
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
