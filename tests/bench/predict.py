#!/usr/bin/env python3
"""How well the simulator foretells what the real engine does on this machine.

    python3 tests/bench/predict.py [--binary PATH/actor-node] [--requests 80] [--rates 0.5,0.8] [--rounds 2]
                                   [--calibration "--rounds 2 --serve 10s"]

`actor-node calibrate` measures what the steps of the default model cost here. Then one node serves prompts of 50 to 400
tokens with answers of 10 to 60, arriving as a Poisson process, and records them (`--record`). Its log is simulated with
the measured costs and nothing else of the node's; what clients saw is held against what the simulation says. A rate is a
share of the requests that the calibration says the node can do: the higher, the more of the time is queueing, and the
more an error of the costs counts.

The speed of a machine that others share changes within seconds, and no calibration beside a run can know what it will be. So
each run is simulated in two ways:

`replayed` goes by the speed that the machine had in each second of the run: the node wrote down some of its steps
(`--record-steps`), and the simulator holds them against what the calibration before the run says of them (`cost.speed`). That
is a replay of yesterday's requests on yesterday's machine. It knows how fast the machine was; when requests came to wait for
each other, for how long, and what was computed together it has to find out.

`unseen` knows nothing of the run. Each run has a calibration right before it and one right after it, which the next run shares:
C run C run C. The run is simulated with either, and the mean of both counts: the middle of the speeds around it.

Before a run the node has used all its KV pages once, as one has that has served for a while. Memory that is touched for the first
time has to be found and zeroed while a step waits for it.

More figures are for finding causes. `seconds` is the speed in each second of the run, from all steps in the node's log. `steps`
is took / said of the whole run, by kind, against both calibrations. `idle` is the mean TTFT of requests that met a node
without work, over what their prompt alone should take.
"""
import argparse
import contextlib
import http.client
import json
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from cluster import Process, quantile

SCENARIO = """seed = 1
[workload]
trace = "{trace}"
deadline = "1h"
[cluster]
workers = 1
pages = {pages}
page-tokens = 16
max-context = 2048
max-mixed-tokens = 128
network = "300us"
{cost}"""


UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
KINDS = ("prefill", "decode", "mixed")


def seconds(text):
    number, unit = re.fullmatch(r'"?(\d+)([a-z]+)"?', text).groups()
    return int(number) * UNITS[unit]


class Costs:
    """What `actor-node calibrate` printed."""

    def __init__(self, args):
        run = subprocess.run([args.binary, "calibrate", *shlex.split(args.calibration)], capture_output=True, text=True)
        if run.returncode:
            sys.exit(run.stderr)
        print(run.stdout, flush=True)
        self.text = run.stdout
        keys = dict(re.findall(r"^([a-z-]+) = (.+)$", self.text, re.MULTILINE))
        self.table = list(zip(json.loads(keys["rows"]), map(seconds, json.loads(keys["took"]))))
        self.slice, self.decode, self.prefill, self.between = (
            seconds(keys[key]) for key in ("per-slice", "attention-decode", "attention-prefill", "between")
        )
        self.serving = float(keys["serving"])
        # The coarse prices, in comments, for how much the node can do about.
        coarse = {name: seconds(price) for name, price in re.findall(r'^# ([a-z-]+) = ("\d+[a-z]+")$', self.text, re.MULTILINE)}
        decoded = coarse["decode-per-sequence"] + coarse["step-overhead"] / 4
        # What an average request costs where several are decoded in one step.
        self.request = 225 * coarse["prefill-per-token"] + 35 * decoded

    def step(self, slices):
        """Seconds of a step in the engine of a node that serves, as policies::cost::StepCosts has it."""
        attention = 0.0
        for start, tokens in slices:
            alone = self.decode * (start + 1)
            attention += alone if tokens == 1 else max(alone, self.prefill * (tokens * start + tokens * (tokens + 1) / 2))
        rows = sum(tokens for _, tokens in slices)
        after = next((at for at, (knot, _) in enumerate(self.table) if knot >= rows), len(self.table) - 1)
        (low, least), (high, most) = self.table[max(after - 1, 0)], self.table[after]
        table = most if high == low else least + (most - least) * (rows - low) / (high - low)
        return self.serving * (table + self.slice * len(slices) + attention)


def requests(number, seed):
    rng = random.Random(seed)
    return [([rng.randrange(1000, 41000) for _ in range(rng.randrange(50, 401))], rng.randrange(10, 61)) for _ in range(number)]


def serve(args, folder, asked, rate, seed):
    log = os.path.join(folder, f"requests-{rate:.3f}-{seed}.jsonl")
    with contextlib.ExitStack() as stack:
        command = [args.binary, "--http-listen", "127.0.0.1:0", "--max-context", "2048"]
        # As the calibration's node, so that what it costs to say it is in both.
        command += ["--log-level", "warn,actor_node::steps=trace", "--log-format", "json"]
        command += ["--kv-pages", str(args.pages), "--record", log, "--record-steps", log + ".steps"]
        node = Process(stack, "node", command, folder)
        node.wait(lambda: node.ask("GET", "/readiness")[0] == 200)

        def ask(prompt, answer):
            body = {"model": "default", "prompt": prompt, "max_tokens": answer, "temperature": 0, "ignore_eos": True}
            connection = http.client.HTTPConnection(node.address, timeout=600)
            with contextlib.closing(connection):
                connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
                if (reply := connection.getresponse()).status != 200:
                    sys.exit(f"answered {reply.status}: {reply.read()!r}")
                reply.read()

        # All pages are used before one is used again.
        rng = random.Random("warm-up")
        for _ in range(warm_up := -(-args.pages * 16 // 1000)):
            ask([rng.randrange(1000, 41000) for _ in range(1000)], 1)
        warm = os.path.getsize(node.log)
        rng, due, threads = random.Random(seed), time.perf_counter() + 0.5, []
        for prompt, answer in asked:
            due += rng.expovariate(rate)
            time.sleep(max(0.0, due - time.perf_counter()))
            threads.append(threading.Thread(target=ask, args=(prompt, answer)))
            threads[-1].start()
        for thread in threads:
            thread.join()
    with open(log) as file:
        lines = sorted((json.loads(line) for line in file), key=lambda line: line["timestamp"])[warm_up:]
    with open(log, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    with open(node.log) as file:
        file.seek(warm)
        return log, lines, steps(file)


def steps(told):
    """Of a node's log: when each began in seconds, its slices as (start, tokens), and seconds in the engine."""
    under_way, found = None, []
    for line in map(json.loads, told):
        if line.get("target") == "actor_node::steps":
            if "slices" in line:
                under_way = line["at"] / 1e9, [tuple(map(int, part.split("+"))) for part in line["slices"].split()]
            elif under_way:
                found.append((*under_way, line["took"] / 1e9))
                under_way = None
    return found


def kind(slices):
    single = {tokens == 1 for _, tokens in slices}
    return KINDS[{(False,): 0, (True,): 1}.get(tuple(single), 2)]


def causes(both, lines, ran):
    """What the steps of a run took over what the calibrations say of them, and the same of prompts that met no others."""
    say = lambda slices: statistics.mean(costs.step(slices) for costs in both)
    sums = {name: [0.0, 0.0] for name in ("all", *KINDS)}
    for _, slices, took in ran:
        for name in ("all", kind(slices)):
            sums[name][0] += took
            sums[name][1] += say(slices)
    busy_until, idle = 0.0, [0.0, 0.0]
    for line in lines:
        # Within 512 tokens a prompt is one step.
        if line["timestamp"] > busy_until and line["input_length"] <= 512:
            following = [other["timestamp"] for other in lines if other["timestamp"] > line["timestamp"]]
            if min(following, default=float("inf")) > line["timestamp"] + line["ttft_ms"]:
                idle[0] += line["ttft_ms"] / 1e3
                idle[1] += say([(0, line["input_length"])])
        busy_until = max(busy_until, line["timestamp"] + line["e2e_ms"])
    ratio = lambda pair: round(pair[0] / pair[1], 3) if pair[1] else None
    return {"steps": {name: ratio(pair) for name, pair in sums.items()}, "idle": ratio(idle)}


def measured(lines):
    first = lines[0]["timestamp"]
    end = max(line["timestamp"] + line["e2e_ms"] for line in lines)
    ttft = [line["ttft_ms"] for line in lines]
    return {
        "TTFT mean": statistics.mean(ttft),
        "TTFT p90": quantile(ttft, 0.9),
        "end to end mean": statistics.mean(line["e2e_ms"] for line in lines),
        "tokens a second": sum(line["output_length"] for line in lines) / (end - first) * 1e3,
    }


def speeds(costs, ran):
    """What the steps that begin in each second of a run took over what is said of them."""
    sums = {}
    for at, slices, took in ran:
        one = sums.setdefault(int(at - ran[0][0]), [0.0, 0.0])
        one[0] += took
        one[1] += costs.step(slices)
    return {second: took / said for second, (took, said) in sorted(sums.items())}


def simulated(args, folder, log, cost, *speed):
    path = os.path.join(folder, "scenario.toml")
    with open(path, "w") as file:
        file.write(SCENARIO.format(trace=log, pages=args.pages, cost=cost))
    run = subprocess.run([args.binary, "sim", path, "--json", *speed], capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    report = json.loads(run.stdout)
    return {
        "TTFT mean": report["ttft_ms"]["mean"],
        "TTFT p90": report["ttft_ms"]["p90"],
        "end to end mean": report["end_to_end_ms"]["mean"],
        "tokens a second": report["output_tokens_per_second"],
    }


def show(rows):
    for way in ("replayed", "unseen"):
        names = list(rows[0]["measured"])
        print(f"\n{way}:\n\n| share of what it can do, round | " + " | ".join([*names, "steps"]) + " |" + "\n|---" + "|---" * (len(names) + 1) + "|")
        for row in rows:
            said, real = row[way], row["measured"]
            cells = [f"{said[name]:.0f} / {real[name]:.0f} = {said[name] / real[name]:.2f}" for name in names]
            print(f"| {row['share']}, {row['round']} | " + " | ".join([*cells, f"{row['steps']['all']:.2f}"]) + " |")
        print("\nsimulated / measured; wanted: 0.8 to 1.2 for TTFT and tokens a second")
        for name in names:
            ratios = [row[way][name] / row["measured"][name] for row in rows]
            within = sum(0.8 <= ratio <= 1.2 for ratio in ratios)
            span = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(f"{name}: median {statistics.median(ratios):.2f}, {span}, {within} of {len(ratios)} within 20 %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "release", "actor-node")
    parser.add_argument("--binary", default=default, help="default: %(default)s")
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--rates", default="0.5,0.8")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pages", type=int, default=600)
    parser.add_argument("--seed", default="", help="other requests and arrivals with each; default: none")
    parser.add_argument("--calibration", default="--rounds 2 --serve 10s", help="of `actor-node calibrate`; default: %(default)s")
    args = parser.parse_args()
    args.binary = os.path.abspath(args.binary)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        before, rows = Costs(args), []
        for share in map(float, args.rates.split(",")):
            for number in range(args.rounds):
                seed = f"{share}-{number}{args.seed}"
                log, lines, ran = serve(args, folder, requests(args.requests, seed), share / before.request, seed)
                after = Costs(args)
                real = measured(lines)
                either = [simulated(args, folder, log, costs.text) for costs in (before, after)]
                unseen = {name: statistics.mean(one[name] for one in either) for name in real}
                replayed = simulated(args, folder, log, before.text, "--speed", log + ".steps")
                seconds = [round(factor, 2) for factor in speeds(before, ran).values()]
                run = {"share": share, "round": number, "measured": real, "replayed": replayed, "unseen": unseen, "either": either}
                rows.append(run | causes((before, after), lines, ran))
                print(json.dumps(rows[-1] | {"seconds": seconds}), flush=True)
                before = after
    show(rows)
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
