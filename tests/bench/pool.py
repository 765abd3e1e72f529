#!/usr/bin/env python3
"""What a pool saves: the time to first token of a prompt that a worker has dropped, computed again and fetched from a pool.

    python3 tests/bench/pool.py [--binary PATH/actor-node] [--rounds 7] [--tokens 512,1024,1900] [--json FILE]

Two clusters of the default model are up at once, each with a controller, a gateway and one worker of one thread with room
for one prompt only; one of them has a pool, with a folder on disk, and `pool-replicate` for its only policy. In each round
both get, one after the other and in turn first, a new prompt, another one that drives it out, and the first one again with
a few tokens behind it. `cold` is the first time, `again` the last; the answers of both sides have to be the same.
"""
import argparse
import contextlib
import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import time

from cluster import Process

JSON = {"content-type": "application/json"}


class Side:
    """A cluster, with a pool or without."""

    def __init__(self, stack, args, folder, name, pool):
        home = os.path.join(folder, name)
        os.makedirs(home)
        self.name, seeds = name, []

        def start(role, *more):
            command = [args.binary, "--name", f"{name}-{role}", "--role", role, "--log-level", "warn"]
            command += ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", *seeds, *more]
            process = Process(stack, f"{name}-{role}", command, home)
            seeds.extend(["--seed", process.cluster])
            return process

        policies = os.path.join(home, "policies.toml")
        with open(policies, "w") as file:
            listed = '"pool-replicate"' if pool else '"replicate"'
            file.write(f"[cluster]\ncluster-policies = [{listed}]\n")
            file.write("[engine]\nthreads = 1\n[policy.pool-replicate]\nmin-tokens = 64\n")
            if pool:
                file.write(f'[pool]\nram = "64MiB"\ndisk = "{os.path.join(home, "pages")}"\ndisk-size = "8GiB"\n')
        more = ["--config", policies]
        self.controller = start("controller", *more)
        self.pool = start("pool", *more) if pool else None
        pages = str(args.most // 16 + 4)
        self.worker = start("worker", *more, "--kv-pages", pages, "--max-context", str(args.most + 64))
        self.gateway = start("gateway", *more)
        self.gateway.wait(lambda: self.gateway.ask("GET", "/readiness")[0] == 200)

    def ask(self, prompt, answer=8):
        """Time to first token, and the text."""
        body = {"model": "default", "prompt": prompt, "max_tokens": answer, "temperature": 0, "ignore_eos": True}
        connection = http.client.HTTPConnection(self.gateway.address, timeout=600)
        with contextlib.closing(connection):
            began, first, text = time.perf_counter(), None, ""
            connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), JSON)
            reply = connection.getresponse()
            if reply.status != 200:
                sys.exit(f"{self.name} answered {reply.status}: {reply.read()!r}")
            for line in reply:
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:])["choices"]
                    first = first or time.perf_counter()
                    text += "".join(choice["text"] for choice in choices)
        return first - began, text

    def figure(self, process, name, label=""):
        text = process.ask("GET", "/metrics")[1].decode()
        lines = [line for line in text.splitlines() if line.startswith(name) and label in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def until_kept(self, pages):
        """The directory knows of so many pages of the pool."""
        if not self.pool:
            return

        def known():
            rows = json.loads(self.controller.ask("GET", "/v1/directory")[1])["pools"]
            return sum(row["pages"] for row in rows) >= pages

        self.controller.wait(known)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "release", "actor-node")
    parser.add_argument("--binary", default=default)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", default="512,1024,1900")
    parser.add_argument("--json")
    args = parser.parse_args()
    lengths = [int(length) for length in args.tokens.split(",")]
    args.most = max(lengths) + 64
    rng, found = random.Random(11), {length: {"computed": [], "pool": [], "ratio": [], "cold": []} for length in lengths}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        sides = {"computed": Side(stack, args, folder, "computed", False), "pool": Side(stack, args, folder, "pool", True)}
        kept = 0
        draw = lambda tokens: [rng.randrange(1000, 41000) for _ in range(tokens)]
        for round_number in range(args.rounds):
            for length in lengths:
                prompt, other, tail = draw(length), draw(args.most - 16), draw(8)
                again, texts = {}, {}
                kept += length // 16 + (args.most - 16) // 16
                for name in list(sides)[:: 1 if round_number % 2 else -1]:
                    side = sides[name]
                    cold, first = side.ask(prompt)
                    side.ask(other)
                    side.until_kept(kept)
                    again[name], text = side.ask(prompt + tail)
                    texts[name] = (first, text)
                    found[length]["cold"].append(cold)
                    found[length][name].append(again[name])
                if texts["computed"] != texts["pool"]:
                    sys.exit(f"the answers differ: {texts}")
                found[length]["ratio"].append(again["pool"] / again["computed"])
        pool, worker = sides["pool"].pool, sides["pool"].worker
        side = sides["pool"]
        given = {tier: side.figure(pool, "actor_node_pool_given_pages_total", tier) for tier in ("ram", "disk")}
        fetched = side.figure(worker, "actor_node_kv_transfers_total", "committed")
    ms = lambda seconds: 1e3 * statistics.median(seconds)
    print(f"{'prompt':>7} {'cold':>9} {'computed again':>15} {'from the pool':>14} {'ratio':>6}   (medians of {args.rounds}, ms)")
    for length, of in found.items():
        row = f"{length:>7} {ms(of['cold']):>9.1f} {ms(of['computed']):>15.1f} {ms(of['pool']):>14.1f}"
        print(f"{row} {statistics.median(of['ratio']):>6.3f}")
    print(f"pages given from RAM {given['ram']:.0f}, from disk {given['disk']:.0f}; transfers {fetched:.0f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"found": found, "given": given}, file)


if __name__ == "__main__":
    main()
