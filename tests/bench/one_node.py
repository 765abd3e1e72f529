#!/usr/bin/env python3
"""One node against llama.cpp and against engine `mistralrs`: prefill, one stream, eight streams (tokens/s).

    python3 tests/bench/one_node.py --binary PATH/actor-node --model MODEL.gguf [--rounds 5] [--threads 2]
                                    [--sides paged,llama,mistralrs]

Ours are measured through the HTTP API of a started node, streaming included; llama.cpp through its own C API in a
process of its own (needs llama-cpp-python 0.3.36 and numpy). The sides alternate within each round; medians over the
rounds and ratios to ours are printed at the end. Needs nothing but the standard library for our side.
"""
import argparse
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time

PROMPT, CONTEXT, STREAM, MANY = 512, 256, 48, 8


def tokens(count, salt):
    return [1000 + ((i * 7919 + salt * 31) % 40000) for i in range(count)]


# --- our side ------------------------------------------------------------------------------------------------------


class Node:
    def __init__(self, args, engine):
        command = [args.binary, "--engine", engine, "--model", f"file:{args.model}", "--threads", str(args.threads)]
        command += ["--http-listen", "127.0.0.1:0", "--log-level", "warn"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip().removeprefix("http://")
        while self.get("/readiness") != 200:
            if self.process.poll() is not None:
                sys.exit(f"{' '.join(command)} ended with {self.process.returncode}")
            time.sleep(0.05)

    def get(self, path):
        connection = http.client.HTTPConnection(self.address)
        connection.request("GET", path)
        return connection.getresponse().status

    def times(self, prompt, count):
        """When each token of one stream arrived, the start first."""
        body = {"model": "default", "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True}
        body["stream"] = True
        connection = http.client.HTTPConnection(self.address)
        at = [time.perf_counter()]
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        for line in response:
            if line.startswith(b"data: {") and b'"choices":[]' not in line:
                at.append(time.perf_counter())
        return at

    def stop(self):
        self.process.terminate()
        self.process.wait()


def ours(args, engine, round_number):
    node = Node(args, engine)
    salt = 100 * round_number
    node.times(tokens(64, salt + 99), 4)  # first touch of weights and pages
    at = node.times(tokens(PROMPT, salt + 1), 1)
    result = {"prefill": PROMPT / (at[1] - at[0])}
    at = node.times(tokens(CONTEXT, salt + 2), STREAM + 1)
    result["decode"] = STREAM / (at[-1] - at[1]) * (len(at) - 2) / STREAM
    streams = [None] * MANY

    def run(i):
        streams[i] = node.times(tokens(CONTEXT, salt + 10 + i), 3 * STREAM)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(MANY)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Only while all eight decode: from the last stream's first token to the first stream's last.
    begin, end = max(at[1] for at in streams), min(at[-1] for at in streams)
    counted = sum(1 for at in streams for t in at[1:] if begin < t <= end)
    if end > begin:
        result["decode8"] = counted / (end - begin)
    else:  # an engine that runs one stream after another decodes all of them at the pace of one
        result["decode8"] = statistics.median((len(at) - 2) / (at[-1] - at[1]) for at in streams)
    node.stop()
    return result


# --- llama.cpp -----------------------------------------------------------------------------------------------------


def llama(args, round_number):
    """In a process of its own, so that its threads do not idle beside ours."""
    code = f"import sys; sys.argv=['x']; sys.path.insert(0, {json.dumps(sys.path[0])}); import one_node; "
    code += f"one_node.llama_here({json.dumps(args.model)}, {args.threads}, {round_number})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return json.loads(out.strip().splitlines()[-1])


def llama_here(path, threads, round_number):
    import llama_cpp as api

    api.llama_backend_init()
    model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())

    def context(sequences):
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 8192, 1024, 512, sequences
        params.n_threads = params.n_threads_batch = threads
        return api.llama_init_from_model(model, params)

    def decode(ctx, items):
        batch = api.llama_batch_init(len(items), 0, 1)
        batch.n_tokens = len(items)
        for i, (token, position, sequence, logits) in enumerate(items):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, logits
        assert api.llama_decode(ctx, batch) == 0
        # Decoding may be asynchronous; the logits are there when it is done.
        api.llama_get_logits_ith(ctx, len(items) - 1)
        api.llama_batch_free(batch)

    salt = 100 * round_number
    one = context(1)
    decode(one, [(t, i, 0, i == 63) for i, t in enumerate(tokens(64, salt + 99))])
    api.llama_memory_clear(api.llama_get_memory(one), True)
    start = time.perf_counter()
    decode(one, [(t, i, 0, i == PROMPT - 1) for i, t in enumerate(tokens(PROMPT, salt + 1))])
    result = {"prefill": PROMPT / (time.perf_counter() - start)}
    api.llama_memory_clear(api.llama_get_memory(one), True)
    decode(one, [(t, i, 0, i == CONTEXT - 1) for i, t in enumerate(tokens(CONTEXT, salt + 2))])
    start = time.perf_counter()
    for k in range(STREAM):
        decode(one, [(2000 + k, CONTEXT + k, 0, True)])
    result["decode"] = STREAM / (time.perf_counter() - start)
    many = context(MANY)
    for s in range(MANY):
        decode(many, [(t, i, s, i == CONTEXT - 1) for i, t in enumerate(tokens(CONTEXT, salt + 10 + s))])
    start = time.perf_counter()
    for k in range(STREAM):
        decode(many, [(2000 + k + s, CONTEXT + k, s, True) for s in range(MANY)])
    result["decode8"] = MANY * STREAM / (time.perf_counter() - start)
    print(json.dumps(result))


# --- the comparison ------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sides", default="paged,llama,mistralrs")
    args = parser.parse_args()
    sides = args.sides.split(",")
    seen = {side: [] for side in sides}
    for round_number in range(args.rounds):
        for side in sides:
            result = llama(args, round_number) if side == "llama" else ours(args, side, round_number)
            seen[side].append(result)
            print(json.dumps({"round": round_number, "side": side, **{k: round(v, 1) for k, v in result.items()}}), flush=True)
    print(f"\n{'median tokens/s':<18}{'prefill 512':>14}{'decode 1':>12}{'decode 8':>12}")
    keys = ("prefill", "decode", "decode8")
    middle = {side: {k: statistics.median(r[k] for r in seen[side]) for k in keys} for side in sides}
    for side in sides:
        print(f"{side:<18}" + "".join(f"{middle[side][k]:>{w}.1f}" for k, w in zip(keys, (14, 12, 12))))
    for side in sides:
        if side != "paged" and "paged" in sides:
            # The ratio within each round first: a noisy minute hits both sides alike.
            ratios = {k: statistics.median(a[k] / b[k] for a, b in zip(seen["paged"], seen[side])) for k in keys}
            print(f"{'paged / ' + side:<18}" + "".join(f"{ratios[k]:>{w}.2f}" for k, w in zip(keys, (14, 12, 12))))


if __name__ == "__main__":
    main()
