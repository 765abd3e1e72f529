#!/usr/bin/env python3
"""Prompts that are computed on another worker: what that adds to time to first token, and what it spares chat streams.

    python3 tests/bench/handoff.py ttft [--binary PATH/actor-node] [--rounds 9] [--quick]
    python3 tests/bench/handoff.py chat [--binary PATH/actor-node] [--rounds 3] [--seconds 60] [--rate 0.3] [--quick]
    python3 tests/bench/handoff.py move [--binary PATH/actor-node] [--rounds 9] [--quick]
    python3 tests/bench/handoff.py all  ...

Both run the real model on two cores; each worker has one thread and is pinned to one core with `taskset`. Each
arrangement is a cluster of its own: 1 controller, 1 gateway and its workers, separate processes joined by a seed, with
the configuration's defaults but for the size of a step (`--batch-tokens`, `runtime.max-batch-tokens`: each size is
measured on its own), `runtime.max-running`, which may not be more than that, and the number of pages. `--quick` shows
that it works; its figures mean nothing.

`ttft`  one     1 unified worker on the first core
        pair    1 prefill worker on the first core, 1 decode worker on the second
    Both are up at once and one request is under way at a time, so that whoever is not asked leaves the machine alone.
    Every prompt is new, has 1,024 tokens and goes to both sides, which take turns at being first; the answers have to
    be the same. Controllers, gateways and the client run on the second core, beside the decode worker. `added` is what
    the pair takes more to the first token, within a round; `steps` are those of the prefill worker
    for one prompt, each of which costs something besides its tokens.

`chat`  unified 2 unified workers, one a core
        split   1 prefill worker on the first core, 1 decode worker on the second
    Started anew for every measurement, in turn within each round. Four chat streams decode all the time, each answer of
    768 tokens followed at once by the next chat (rarely, for its own short prompt stalls the others on its worker too),
    while prompts of 1,024 tokens with answers of 8 arrive evenly at a rate that does not depend on how they fare:
    `--load` (0.7) of what one worker alone computes in prefill, found out first on one core for each size of a step, or
    `--rate`. Controller, gateway and client run on the first core, beside the prefill worker or the first unified one.
    What is measured begins after a warm-up, and ends before the streams do.

        gap         time between two tokens of a chat stream that end in the measured time, as the client gets them
                    (a stall is a gap for each chat on the worker: where steps are few and long, less than one gap in a
                    hundred is one, and p99 does not see them; p99.9, the longest and `stalled` do)
        stalled     the share of the streams' measured time that is in gaps over 100 ms
        TTFT        of all prompts that arrive in the measured time; these are few, so that p99 is the slowest
                    (with the time that the client was late to send them)
        done        prompts answered in the measured time; left: those that arrived in it and were not answered at its end
        sent        the share of all prompts that one worker computed for another
        placed      how many chats and prompts were given to each worker, where they are generated
        busy        processor time of each process by the measured time

    Chats with the same place in the order have the same answer on both sides, and so have prompts; this is checked as far
    as both have come with them.

`move`  2 unified workers, one a core; one stream of 256 tokens after a prompt of 1,024 is moved to the other worker in its
    middle (`POST /v1/sessions/{id}/migrate`). `gap` is the longest between two tokens from the request to move on,
    `step` the median of the gaps before it; `tail` what is beyond one step; `in_page` how many tokens the stream's last
    page had: 16 rounds see each number once. The pages go beforehand, while the stream goes on, and take the other core's
    time; the answer has to be that of a stream that stays.
"""
import argparse
import collections
import contextlib
import json
import os
import random
import re
import selectors
import socket
import statistics
import sys
import tempfile
import threading
import time

from cluster import STUCK, Process, quantile

PROMPT, ANSWER, CHATS, CHAT_ANSWER, STALL = 1024, 8, 4, 768, 0.1
WORDS = "river stone lamp cloud engine paper orange window forest silver table morning harbour candle".split()
PHASES = {"prefill": "until all is there", "transfer": "first page to taken over", "commit": "last page to taken over"}


# --- clusters ------------------------------------------------------------------------------------------------------


class Cluster:
    """A controller, a gateway and workers `(name, role, core)`, ready to serve."""

    def __init__(self, args, stack, batch_tokens, workers, service_core):
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        common = ["--http-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--log-level", "warn"]
        settings = [f"runtime.max-batch-tokens = {batch_tokens}", "runtime.max-running = 64", *args.set]
        common += ["--config", os.path.join(folder, "settings.toml")]
        with open(common[-1], "w") as file:
            file.write("\n".join([*settings, ""]))

        def node(name, core, *more):
            command = ["taskset", "-c", str(core), args.binary, "--name", name, *more, *common]
            return Process(stack, name, command, folder)

        self.controller = node("controller", service_core, "--role", "controller")
        seed = ["--seed", self.controller.cluster]
        engine = ["--threads", "1", "--device", "cpu", "--max-context", "2048", "--kv-pages", str(args.kv_pages)]
        engine += ["--model", args.model] if args.model else []
        self.workers = {
            name: node(name, core, "--role", "worker", "--worker-role", role, *engine, *seed)
            for name, role, core in workers
        }
        self.gateway = node("gateway", service_core, "--role", "gateway", *seed)
        self.gateway.wait(self.serves)

    def serves(self):
        known = json.loads(self.controller.ask("GET", "/v1/workers")[1])["data"]
        return len(known) == len(self.workers) and self.gateway.ask("GET", "/readiness")[0] == 200

    def processes(self):
        return [self.controller, self.gateway, *self.workers.values()]

    def figure(self, worker, name, **labels):
        """A figure of a worker, over all series with these labels."""
        total = 0.0
        for line in self.workers[worker].ask("GET", "/metrics")[1].decode().splitlines():
            series = re.match(r"([\w:]+)(?:\{(.*)\})? (\S+)$", line)
            if series and series[1] == name:
                has = dict(re.findall(r'(\w+)="([^"]*)"', series[2] or ""))
                total += float(series[3]) if labels.items() <= has.items() else 0.0
        return total

    def handed_off(self, decode):
        """Hand-offs that a decode worker took over so far: number, bytes, and seconds in all of each phase."""
        figures = {
            "count": self.figure(decode, "actor_node_kv_transfers_total", end="receiver", outcome="committed"),
            "bytes": self.figure(decode, "actor_node_kv_transfer_bytes_total", end="receiver"),
        }
        return figures | {name: self.figure(decode, f"actor_node_pd_{name}_seconds_sum") for name in PHASES}


# --- the client ----------------------------------------------------------------------------------------------------


class Stream:
    """A streamed request under way, on a connection of its own."""

    def __init__(self, address, path, body, key):
        host, port = address.rsplit(":", 1)
        asked = {"model": "default", "temperature": 0, "ignore_eos": True, "stream": True}
        sent = json.dumps({**asked, "stream_options": {"include_usage": True}, **body}).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.key, self.buffer, self.worker, self.id = key, b"", None, None
        self.at, self.texts, self.finish, self.tokens, self.ended = [], [], None, 0, None
        self.socket = socket.create_connection((host, int(port)), timeout=STUCK)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.began = time.perf_counter()
        self.socket.sendall(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)

    def read(self):
        """Takes in what has come; whether that was all. An answer that is not a whole good one ends the run."""
        data = self.socket.recv(1 << 16)
        now = time.perf_counter()
        self.buffer += data
        if self.worker is None and b"\r\n\r\n" in self.buffer:
            head, _, rest = self.buffer.partition(b"\r\n\r\n")
            served = re.search(rb"^x-served-by: ([^#\s]+)", head, re.MULTILINE | re.IGNORECASE)
            if head.startswith(b"HTTP/1.1 200") and served:
                self.worker, self.buffer = served[1].decode(), rest
        # Line ends are escaped within JSON, and those of chunks are not like these.
        *events, self.buffer = self.buffer.split(b"\n\n") if self.worker else [self.buffer]
        for event in events:
            _, found, event = event.partition(b"data: ")
            if event == b"[DONE]":
                self.end(now)
            elif found:
                self.take(json.loads(event), now)
        if not data and not self.ended:
            sys.exit(f"{self.key}: not answered whole: {self.buffer[-1000:]!r}")
        return self.ended is not None

    def take(self, event, now):
        if "error" in event:
            sys.exit(f"{self.key}: {event['error']}")
        self.id = event["id"]
        self.tokens = (event.get("usage") or {}).get("completion_tokens", self.tokens)
        for choice in event["choices"]:
            text = choice["text"] if "text" in choice else choice["delta"].get("content")
            if text:
                self.at.append(now)
                self.texts.append(text)
            self.finish = choice.get("finish_reason") or self.finish

    def end(self, now):
        self.ended = now
        if self.finish != "length" or not self.at:
            sys.exit(f"{self.key}: ended by {self.finish} after {len(self.at)} tokens")

    def ttft(self):
        return self.at[0] - self.began

    def text(self):
        return "".join(self.texts)


def long_prompt(cluster, key, answer):
    """The same tokens for the same key, none of which are held anywhere at first."""
    rng = random.Random(str(key))
    tokens = [rng.randrange(1000, 41000) for _ in range(PROMPT)]
    return Stream(cluster.gateway.address, "/v1/completions", {"prompt": tokens, "max_tokens": answer}, key)


def chat(cluster, key):
    """A chat that differs from all others from its system message on: none is drawn to a worker by what it holds."""
    rng = random.Random(str(key))
    words = " ".join(rng.choice(WORDS) for _ in range(6))
    system = f"{rng.randrange(10**9)} is your story. You write long stories in plain English."
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Write about these: {words}."}]
    body = {"messages": messages, "max_tokens": CHAT_ANSWER}
    return Stream(cluster.gateway.address, "/v1/chat/completions", body, key)


def alone(cluster, key, answer=ANSWER):
    """One prompt with nothing beside it."""
    stream = long_prompt(cluster, key, answer)
    while not stream.read():
        pass
    stream.socket.close()
    return stream


# --- what a hand-off adds to time to first token ----------------------------------------------------------------------


def taken(pair):
    return {**pair.handed_off("decode"), "steps": pair.figure("prefill", "actor_node_engine_step_seconds_count")}


def ttft(args, batch_tokens, results):
    first, second = args.cores
    service_core = second if args.service_core is None else args.service_core
    os.sched_setaffinity(0, {service_core})
    rounds = 2 if args.quick else args.rounds or 9
    seen = []
    with contextlib.ExitStack() as stack:
        sides = {
            "one": Cluster(args, stack, batch_tokens, [("unified", "unified", first)], service_core),
            "pair": Cluster(
                args, stack, batch_tokens, [("prefill", "prefill", first), ("decode", "decode", second)], service_core
            ),
        }
        for side in sides.values():
            for number in range(2):  # first touch of weights and pages, and the first connection between workers
                alone(side, ("warm-up", number))
        before = taken(sides["pair"])
        for number in range(rounds):
            order = list(sides) if number % 2 == 0 else list(sides)[::-1]
            answers = {side: alone(sides[side], ("ttft", batch_tokens, number)) for side in order}
            if len({answer.text() for answer in answers.values()}) != 1:
                sys.exit(f"round {number}: the sides answered {[answer.text() for answer in answers.values()]}")
            seen.append({side: answer.ttft() * 1e3 for side, answer in answers.items()})
            print(json.dumps({"ttft": batch_tokens, "round": number, **seen[-1]}), flush=True)
        after = taken(sides["pair"])
    moved = {name: after[name] - before[name] for name in after}
    if moved["count"] != rounds:
        sys.exit(f"{moved['count']:.0f} of {rounds} prompts were handed off, so the figures say nothing about that")
    row = {side: statistics.median(r[side] for r in seen) for side in ("one", "pair")}
    row["added"] = statistics.median(r["pair"] - r["one"] for r in seen)
    row["ratio"] = statistics.median(r["pair"] / r["one"] for r in seen)
    row["ratios"] = [min(r["pair"] / r["one"] for r in seen), max(r["pair"] / r["one"] for r in seen)]
    row |= {name: moved[name] / rounds * 1e3 for name in PHASES}
    row |= {"megabytes": moved["bytes"] / rounds / 1e6, "steps": moved["steps"] / rounds}
    results.setdefault("ttft", {})[batch_tokens] = {"summary": row, "rounds": seen}


def show_ttft(results):
    print(f"\nTime to first token of {PROMPT} new tokens, ms, medians (hand-off: means)\n")
    print("| tokens a step | one worker | pair | added | ratio (least to most) | "
          "hand-off: " + " · ".join(PHASES.values()) + " | MB moved | steps |")
    print("|---|---|---|---|---|---|---|---|")
    for batch_tokens, result in results.items():
        row = result["summary"]
        phases = " · ".join(f"{row[name]:.1f}" for name in PHASES)
        print(f"| {batch_tokens} | {row['one']:.0f} | {row['pair']:.0f} | {row['added']:.1f} | {row['ratio']:.3f} "
              f"({row['ratios'][0]:.3f} to {row['ratios'][1]:.3f}) | {phases} | {row['megabytes']:.1f} | "
              f"{row['steps']:.0f} |")
    print("| wanted | | | | at most 1.10 | | | |")


# --- what a move costs the stream that is moved ------------------------------------------------------------------------


def move(args, batch_tokens, results):
    first, second = args.cores
    service_core = second if args.service_core is None else args.service_core
    os.sched_setaffinity(0, {service_core})
    rounds, answer, seen = 2 if args.quick else args.rounds or 9, 256, []
    with contextlib.ExitStack() as stack:
        workers = [("unified1", "unified", first), ("unified2", "unified", second)]
        cluster = Cluster(args, stack, batch_tokens, workers, service_core)
        for number in range(4):
            alone(cluster, ("warm-up", number))
        for number in range(rounds):
            stream, asked, reply, at = long_prompt(cluster, ("move", number), answer), None, None, 0
            while not stream.read():
                if asked is None and len(stream.at) >= answer // 2 + 5 * number % 16:  # anywhere in a page
                    other = {"unified1": "unified2", "unified2": "unified1"}[stream.worker]
                    asked, reply, at = time.perf_counter(), Move(cluster, stream.id, other), len(stream.at)
                    reply.start()
            stream.socket.close()
            reply.join()
            if reply.status != 200 or alone(cluster, ("move", number), answer).text() != stream.text():
                sys.exit(f"round {number}: answered {reply.status} {reply.body!r}, or another text")
            gaps = list(zip(stream.at, stream.at[1:]))
            step = statistics.median(b - a for a, b in gaps if b < asked)
            gap = max(b - a for a, b in gaps if b > asked)
            seen.append({"step": step * 1e3, "gap": gap * 1e3, "tail": (gap - step) * 1e3, "took": reply.took * 1e3})
            print(json.dumps({"move": batch_tokens, "round": number, "in_page": (PROMPT + at) % 16, **seen[-1]}), flush=True)
    summary = {name: statistics.median(r[name] for r in seen) for name in seen[0]}
    results.setdefault("move", {})[batch_tokens] = {"summary": summary, "rounds": seen}


class Move(threading.Thread):
    """Asks for a move, beside the stream that is being read."""

    def __init__(self, cluster, request, to):
        super().__init__()
        self.cluster, self.path, self.to = cluster, f"/v1/sessions/{request}/migrate", to
        self.status, self.body, self.took = None, None, None

    def run(self):
        began = time.perf_counter()
        self.status, self.body = self.cluster.gateway.ask("POST", self.path, json.dumps({"to": self.to}))
        self.took = time.perf_counter() - began


def show_move(results):
    print("\nA stream that is moved in its middle, ms, medians\n")
    print("| tokens a step | gap before the move | longest gap from then on (least to most) | beyond a step | the move took |")
    print("|---|---|---|---|---|")
    for batch_tokens, result in results.items():
        row, gaps = result["summary"], [r["gap"] for r in result["rounds"]]
        print(f"| {batch_tokens} | {row['step']:.1f} | {row['gap']:.1f} ({min(gaps):.1f} to {max(gaps):.1f}) | "
              f"{row['tail']:.1f} | {row['took']:.0f} |")


# --- what it spares chat streams --------------------------------------------------------------------------------------


def calibrate(args, batch_tokens, service_core):
    """Prompts a second that `--load` of one core's prefill comes to."""
    with contextlib.ExitStack() as stack:
        one = Cluster(args, stack, batch_tokens, [("unified", "unified", args.cores[1])], service_core)
        alone(one, "warm-up")
        took = statistics.median(alone(one, ("calibrate", i)).ttft() for i in range(1 if args.quick else 3))
    print(json.dumps({"chat": batch_tokens, "prefill_ms": round(took * 1e3, 1), "rate": args.load / took}), flush=True)
    return args.load / took


class Load:
    """The chats, one after the other in each of their places, and the prompts that arrive beside them."""

    def __init__(self, cluster, round_number):
        self.cluster, self.round = cluster, round_number
        self.watch, self.chats, self.prompts, self.turns = selectors.DefaultSelector(), [], [], [0] * CHATS

    def watched(self, stream, place):
        self.watch.register(stream.socket, selectors.EVENT_READ, (stream, place))
        return stream

    def chat(self, place):
        key = ("chat", self.round, place, self.turns[place])
        self.turns[place] += 1
        self.chats.append(self.watched(chat(self.cluster, key), place))

    def prompt(self, due):
        stream = long_prompt(self.cluster, ("prompt", self.round, len(self.prompts)), ANSWER)
        stream.began = due  # being late here is no excuse
        self.prompts.append(self.watched(stream, None))

    def until(self, end):
        """Reads until then. Each chat that ends is followed by the next."""
        while (left := end - time.perf_counter()) > 0:
            for ready, _ in self.watch.select(left):
                stream, place = ready.data
                if stream.read():
                    self.watch.unregister(stream.socket)
                    stream.socket.close()
                    if place is not None:
                        self.chat(place)

    def leave(self):
        for stream in self.chats + self.prompts:
            stream.socket.close()
        self.watch.close()


def run_chat(args, side, batch_tokens, round_number, rate, service_core):
    """One measurement of one arrangement, and what was answered, by key."""
    first, second = args.cores
    workers = {
        "unified": [("unified1", "unified", first), ("unified2", "unified", second)],
        "split": [("prefill", "prefill", first), ("decode", "decode", second)],
    }[side]
    seconds, warm_up = (10.0, 6.0) if args.quick else (args.seconds, max(12.0, 3.5 / rate))
    with contextlib.ExitStack() as stack:
        cluster = Cluster(args, stack, batch_tokens, workers, service_core)
        for number in range(4):  # first touch of weights and pages, at both workers where both take whole requests
            alone(cluster, ("warm-up", number))
        sent = sum(cluster.handed_off(name)["count"] for name in cluster.workers)
        load, cpu = Load(cluster, round_number), []
        stack.callback(load.leave)
        origin = time.perf_counter()
        begin, end = origin + warm_up, origin + warm_up + seconds

        def note():
            cpu.append((time.perf_counter(), {process.name: process.cpu() for process in cluster.processes()}))

        # Chats begin one after the other, so that they do not end together, and on both workers where both are for them.
        plan = [(origin + 0.1 * place * warm_up, lambda place=place: load.chat(place)) for place in range(CHATS)]
        first_due = origin + 0.1 * CHATS * warm_up
        dues = [first_due + number / rate for number in range(int((warm_up + seconds) * rate) + 1)]
        plan += [(due, lambda due=due: load.prompt(due)) for due in dues if due < end]
        for at, act in sorted([*plan, (begin, note), (end, note)], key=lambda planned: planned[0]):
            load.until(at)
            act()
        # The last prompts to arrive are answered beside the chats like the others.
        while not all(prompt.ended for prompt in load.prompts):
            if time.perf_counter() > end + args.patience:
                sys.exit(f"{side}: not all prompts are answered {args.patience:.0f} s after the last one: lower --rate")
            load.until(time.perf_counter() + 0.1)
        sent = sum(cluster.handed_off(name)["count"] for name in cluster.workers) - sent
        answers = {stream.key: stream.text() for stream in load.chats + load.prompts}
        return figures(load, begin, end, cpu, sent), answers


def figures(load, begin, end, cpu, sent):
    seconds = end - begin
    gaps = [gap for chat in load.chats for gap in zip(chat.at, chat.at[1:])]
    ended = [b - a for a, b in gaps if begin <= b <= end]
    stalled = sum(min(b, end) - max(a, begin) for a, b in gaps if b - a > STALL and b > begin and a < end)
    arrived = [prompt for prompt in load.prompts if begin <= prompt.began]
    whole = [chat for chat in load.chats if chat.ended]
    (since, before), (until, after) = cpu
    row = {
        "p50": quantile(ended, 0.5) * 1e3,
        "p99": quantile(ended, 0.99) * 1e3,
        "p999": quantile(ended, 0.999) * 1e3,
        "longest": max(ended) * 1e3,
        "gaps": len(ended),
        "over": sum(gap > STALL for gap in ended) / len(ended),
        "stalled": stalled / (CHATS * seconds),
        "tokens_s": sum(begin <= at <= end for chat in load.chats for at in chat.at) / seconds,
        "chat_ttft": statistics.median(chat.ttft() * 1e3 for chat in load.chats if chat.at),
        "ttft_p50": quantile([prompt.ttft() for prompt in arrived], 0.5) * 1e3,
        "ttft_p99": quantile([prompt.ttft() for prompt in arrived], 0.99) * 1e3,
        "done_s": sum(begin <= prompt.ended <= end for prompt in load.prompts) / seconds,
        "left": sum(prompt.ended > end for prompt in arrived),
        "sent": sent / len(load.prompts),
        # Tokens whose text came with a later one, so that their gaps are not seen.
        "unseen": sum(chat.tokens - len(chat.at) for chat in whole) / max(1, sum(chat.tokens for chat in whole)),
    }
    row["placed"] = placed(load.chats)
    row["prompts_placed"] = placed(load.prompts)
    row["busy"] = {name: (after[name] - before[name]) / (until - since) for name in after}
    return row


def placed(streams):
    return dict(sorted(collections.Counter(stream.worker for stream in streams if stream.worker).items()))


def chats(args, batch_tokens, results):
    service_core = args.cores[0] if args.service_core is None else args.service_core
    os.sched_setaffinity(0, {service_core})
    rate = args.rate or calibrate(args, batch_tokens, service_core)
    sides, seen = ("unified", "split"), []
    for number in range(1 if args.quick else args.rounds or 3):
        order = sides if number % 2 == 0 else sides[::-1]
        got = {side: run_chat(args, side, batch_tokens, number, rate, service_core) for side in order}
        pairs = [(key, text, got["split"][1].get(key, "")) for key, text in got["unified"][1].items()]
        wrong = [pair for pair in pairs if not (pair[1].startswith(pair[2]) or pair[2].startswith(pair[1]))]
        if wrong:
            sys.exit(f"answered differently: {wrong[:3]}")
        seen.append({side: got[side][0] for side in sides})
        compared = sum(min(len(one), len(other)) for _, one, other in pairs)
        print(json.dumps({"chat": batch_tokens, "round": number, "same_characters": compared, **seen[-1]}), flush=True)
    # What is by name is no number.
    numbers = [name for name, value in seen[0]["split"].items() if not isinstance(value, dict)]
    summary = {side: {name: statistics.median(r[side][name] for r in seen) for name in numbers} for side in sides}
    for side in sides:
        busy = seen[0][side]["busy"]
        summary[side]["busy"] = {name: statistics.median(r[side]["busy"][name] for r in seen) for name in busy}
    ratio = {
        name: statistics.median(r["split"][name] / r["unified"][name] for r in seen)
        for name in ("p50", "p99", "p999", "longest", "tokens_s", "ttft_p50", "ttft_p99", "done_s")
        if all(r["unified"][name] for r in seen)
    }
    results.setdefault("chat", {})[batch_tokens] = {"summary": summary, "ratio": ratio, "rate": rate, "rounds": seen}


def show_chat(results):
    print(f"\n{CHATS} chat streams beside prompts of {PROMPT} tokens, medians of the rounds, ms\n")
    print("| tokens a step, prompts/s | arrangement | gap p50 · p99 · p99.9 · longest | stalled | chat tokens/s | "
          "chat TTFT | prompt TTFT p50 · p99 | prompts/s done | left | sent |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for batch_tokens, result in results.items():
        load = f"{batch_tokens}, {result['rate']:.2f}"
        for side, row in result["summary"].items():
            print(f"| {load} | {side} | {row['p50']:.1f} · {row['p99']:.1f} · {row['p999']:.0f} · {row['longest']:.0f} "
                  f"| {row['stalled']:.0%} | {row['tokens_s']:.0f} | {row['chat_ttft']:.0f} | {row['ttft_p50']:.0f} · "
                  f"{row['ttft_p99']:.0f} | {row['done_s']:.2f} | {row['left']:.0f} | {row['sent']:.0%} |")
            load = ""
        r = {name: f"{value:.2f}" for name, value in result["ratio"].items()}
        r = collections.defaultdict(lambda: "-", r)
        print(f"| | ratio | {r['p50']} · **{r['p99']}** · {r['p999']} · {r['longest']} | | {r['tokens_s']} | | "
              f"{r['ttft_p50']} · {r['ttft_p99']} | {r['done_s']} | | |")
    print("| wanted | | p99: at most 0.4 | | | | | | | |\n")
    for batch_tokens, result in results.items():
        for side, row in result["summary"].items():
            busy = ", ".join(f"{name} {share:.0%}" for name, share in row["busy"].items())
            spread = "; ".join(f"{r[side]['placed']} {r[side]['prompts_placed']}" for r in result["rounds"])
            print(f"{batch_tokens} {side}: {row['gaps']:.0f} gaps a round, {row['over']:.2%} of them over "
                  f"{STALL * 1e3:.0f} ms; {row['unseen']:.1%} of tokens not seen by themselves; busy: {busy}; chats and prompts placed, by round: {spread}")


def default_binary():
    return os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "release", "actor-node")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ttft", "chat", "move", "all"))
    parser.add_argument("--binary", default=default_binary(), help="default: %(default)s")
    parser.add_argument("--model", help="as for `actor-node --model`; default: its own default")
    parser.add_argument("--set", action="append", default=[], metavar="'KEY = VALUE'", help="a setting for all nodes")
    parser.add_argument("--cores", default="0,1", help="the two cores of the workers")
    parser.add_argument("--service-core", type=int, help="of controllers, gateways and the client; see above")
    parser.add_argument("--batch-tokens", default="512,128", help="sizes of a step")
    parser.add_argument("--kv-pages", type=int, default=1000)
    parser.add_argument("--rounds", type=int, help="default: 9 for ttft and move, 3 for chat")
    parser.add_argument("--seconds", type=float, default=60.0, help="measured time of a round of chat")
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--rate", type=float, help="prompts a second, in place of --load")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds that the last prompts may take")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", help="where all figures of all rounds go")
    args = parser.parse_args()
    args.binary = os.path.abspath(args.binary)
    args.cores = [int(core) for core in args.cores.split(",")]
    results = {}
    for batch_tokens in [int(tokens) for tokens in args.batch_tokens.split(",")]:
        if args.what in ("ttft", "all"):
            ttft(args, batch_tokens, results)
        if args.what in ("chat", "all"):
            chats(args, batch_tokens, results)
        if args.what in ("move", "all"):
            move(args, batch_tokens, results)
    if "ttft" in results:
        show_ttft(results["ttft"])
    if "chat" in results:
        show_chat(results["chat"])
    if "move" in results:
        show_move(results["move"])
    if args.json:
        with open(args.json, "w") as out:
            json.dump(results, out, indent=1)


if __name__ == "__main__":
    main()
