#!/usr/bin/env python3
"""How well the simulator foretells what the real engine does on this machine.

    python3 tests/bench/predict.py [--binary PATH/actor-node] [--requests 80] [--rates 0.4,0.8] [--rounds 2]

`actor-node calibrate` measures what the steps of the default model cost here. Then one node serves prompts of 50 to 400
tokens with answers of 10 to 60, arriving as a Poisson process, and records them (`--record`). Its log is simulated with
the measured costs and nothing else of the node's; what clients saw is held against what the simulation says. A rate is a
share of the requests that the calibration says the node can do: the higher, the more of the time is queueing, and the
more an error of the costs counts.
"""
import argparse
import contextlib
import http.client
import json
import os
import random
import re
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


def calibrated(args, folder):
    run = subprocess.run([args.binary, "calibrate"], capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    print(run.stdout)
    units = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    # The coarse prices, in comments, for how much the node can do about.
    prices = re.findall(r'^# ([a-z-]+) = "(\d+)([a-z]+)"$', run.stdout, re.MULTILINE)
    return run.stdout, {name: int(number) * units[unit] for name, number, unit in prices}


def requests(number, seed):
    rng = random.Random(seed)
    return [([rng.randrange(1000, 41000) for _ in range(rng.randrange(50, 401))], rng.randrange(10, 61)) for _ in range(number)]


def serve(args, folder, asked, rate, seed):
    log = os.path.join(folder, f"requests-{rate:.3f}-{seed}.jsonl")
    with contextlib.ExitStack() as stack:
        command = [args.binary, "--http-listen", "127.0.0.1:0", "--log-level", "warn", "--max-context", "2048"]
        node = Process(stack, "node", [*command, "--kv-pages", str(args.pages), "--record", log], folder)
        node.wait(lambda: node.ask("GET", "/readiness")[0] == 200)

        def ask(prompt, answer):
            body = {"model": "default", "prompt": prompt, "max_tokens": answer, "temperature": 0, "ignore_eos": True}
            connection = http.client.HTTPConnection(node.address, timeout=600)
            with contextlib.closing(connection):
                connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
                if (reply := connection.getresponse()).status != 200:
                    sys.exit(f"answered {reply.status}: {reply.read()!r}")
                reply.read()

        ask(*requests(1, "warm-up")[0])
        rng, due, threads = random.Random(seed), time.perf_counter() + 0.5, []
        for prompt, answer in asked:
            due += rng.expovariate(rate)
            time.sleep(max(0.0, due - time.perf_counter()))
            threads.append(threading.Thread(target=ask, args=(prompt, answer)))
            threads[-1].start()
        for thread in threads:
            thread.join()
    with open(log) as file:
        lines = sorted((json.loads(line) for line in file), key=lambda line: line["timestamp"])[1:]
    with open(log, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return log, lines


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


def simulated(args, folder, log, cost):
    path = os.path.join(folder, "scenario.toml")
    with open(path, "w") as file:
        file.write(SCENARIO.format(trace=log, pages=args.pages, cost=cost))
    run = subprocess.run([args.binary, "sim", path, "--json"], capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    report = json.loads(run.stdout)
    return {
        "TTFT mean": report["ttft_ms"]["mean"],
        "TTFT p90": report["ttft_ms"]["p90"],
        "end to end mean": report["end_to_end_ms"]["mean"],
        "tokens a second": report["output_tokens_per_second"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "release", "actor-node")
    parser.add_argument("--binary", default=default, help="default: %(default)s")
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--rates", default="0.4,0.8")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pages", type=int, default=4000)
    args = parser.parse_args()
    args.binary = os.path.abspath(args.binary)
    with tempfile.TemporaryDirectory() as folder:
        cost, prices = calibrated(args, folder)
        # What an average request costs where several are decoded in one step.
        one = 225 * prices["prefill-per-token"] + 35 * (prices["decode-per-sequence"] + prices["step-overhead"] / 4)
        rows = []
        for share in map(float, args.rates.split(",")):
            for number in range(args.rounds):
                asked = requests(args.requests, f"{share}-{number}")
                log, lines = serve(args, folder, asked, share / one, f"{share}-{number}")
                real, said = measured(lines), simulated(args, folder, log, cost)
                rows.append((share, number, real, said))
                print(json.dumps({"share": share, "round": number, "measured": real, "simulated": said}), flush=True)
    print("\n| share of what it can do, round | " + " | ".join(rows[0][2]) + " |\n|---" * 1 + "|---" * len(rows[0][2]) + "|")
    for share, number, real, said in rows:
        cells = [f"{said[k]:.0f} / {real[k]:.0f} = {said[k] / real[k]:.2f}" for k in real]
        print(f"| {share}, {number} | " + " | ".join(cells) + " |")
    print("\nsimulated / measured; wanted: 0.8 to 1.2 for TTFT and tokens a second")


if __name__ == "__main__":
    main()
