#!/usr/bin/env python3
"""A cluster against sglang-router: what stands between a client and its worker, with workers that cost nothing.

    pip install sglang-router==0.3.2
    python3 tests/bench/cluster.py --binary PATH/actor-node [--python PYTHON_WITH_SGLANG_ROUTER] [--rounds 5]
                                   [--seconds 5] [--concurrency 1,16,128] [--json FILE]

Sides, all up at once and measured in turn within each round:

    ours    1 gateway + 1 controller + 2 workers, separate processes joined by a seed
    sglang  sglang-router, policy cache_aware, in front of two one-node `actor-node` processes
    direct  the same two one-node processes without a router, connections spread over them: what both are held against

Engine `fake` at zero cost everywhere. The client is a process of its own that keeps `concurrency` connections busy, each
with one streamed completion of 16 tokens after the other, and reads every stream to its end. After the measured time it
checks each of them, byte by byte, against what a one-node process said to the same prompt.

The client acknowledges what it reads at once (TCP_QUICKACK). sglang-router 0.3.2 does not set TCP_NODELAY, so that with
a client that does not (`--lazy-ack`) its streams wait out a delayed acknowledgement of 40 ms, which hides all the rest.

`added` is the quantile of a side minus the same quantile of `direct`, in the same round at the same concurrency; the
table has the medians over the rounds. Nothing is pinned to a core: where all processes share few cores, figures at
concurrency 16 and 128 say what a request costs in processor time, and the table has that per process too.
"""
import argparse
import contextlib
import hashlib
import http.client
import json
import os
import random
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TOKENS, PROMPTS, WARM_UP, START, STUCK = 16, 512, 0.5, 60, 30
SIDES = ("ours", "sglang", "direct")


def prompts():
    """Texts that share no beginning, so that a router's choice by prefix spreads them."""
    words = "river stone lamp cloud engine paper orange window forest silver table morning".split()
    rng = random.Random(7)
    return [f"{i} " + " ".join(rng.choice(words) for _ in range(12)) for i in range(PROMPTS)]


def body(prompt, tokens=TOKENS):
    asked = {"model": "default", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return json.dumps({**asked, "stream": True}).encode()


# --- the client, in a process of its own ---------------------------------------------------------------------------


class Connection:
    """A kept-alive connection with one request under way."""

    def __init__(self, address, quick):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer, self.began, self.prompt, self.quick = bytearray(), 0.0, 0, quick

    def ask(self, prompt, request):
        self.buffer, self.prompt = bytearray(), prompt
        self.began = time.perf_counter()
        self.socket.sendall(request)

    def ended(self):
        """Reads what is there. The last chunk ends like nothing in the middle can: JSON escapes line ends."""
        data = self.socket.recv(1 << 16)
        if not data:
            sys.exit(f"the connection was closed in the middle of a request: {bytes(self.buffer[-500:])!r}")
        if self.quick:
            # The kernel forgets this wish at each read.
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        self.buffer += data
        return self.buffer.endswith(b"\r\n0\r\n\r\n") or b"\r\n\r\n" in data and not self.is_stream()

    def is_stream(self):
        return self.buffer.startswith(b"HTTP/1.1 200") and b"chunked" in self.buffer[:1024]


def text_of(answer):
    """The text of a whole stream; anything but a good one ends the run."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        sys.exit(f"not served: {bytes(answer[:500])!r}")
    stream, at = bytearray(), 0
    while True:
        end = rest.index(b"\r\n", at)
        size = int(rest[at:end], 16)
        if size == 0:
            break
        stream += rest[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
    events = bytes(stream).decode().split("\n\n")
    if events[-2:] != ["data: [DONE]", ""] or not all(e.startswith("data: ") for e in events[:-1]):
        sys.exit(f"not a whole stream: {bytes(answer[-500:])!r}")
    choices = [json.loads(e.removeprefix("data: "))["choices"][0] for e in events[:-2]]
    if [c["finish_reason"] for c in choices if c["finish_reason"]] != ["length"]:
        sys.exit(f"not ended by its length: {bytes(answer[-500:])!r}")
    return "".join(c["text"] for c in choices)


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def client(addresses, concurrency, seconds, quick, expected, tokens):
    """Keeps the connections busy, then prints latencies in seconds as JSON."""
    requests = []
    for prompt in prompts():
        sent = body(prompt, tokens)
        head = "POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        requests.append(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
    watch, by_fd, turn = select.epoll(), {}, 0
    for i in range(concurrency):
        connection = Connection(addresses[i % len(addresses)], quick)
        by_fd[connection.socket.fileno()] = connection
        watch.register(connection.socket, select.EPOLLIN)
        connection.ask(turn % PROMPTS, requests[turn % PROMPTS])
        turn += 1
    begin = time.perf_counter() + WARM_UP
    end, busy, seen, answers, cpu = begin + seconds, concurrency, [], [], None
    while busy:
        ready = watch.poll(STUCK)
        if not ready:
            sys.exit(f"{busy} requests got nothing for {STUCK} s")
        for fd, _ in ready:
            connection = by_fd[fd]
            if not connection.ended():
                continue
            now = time.perf_counter()
            if cpu is None and now >= begin:
                cpu = time.process_time()
            if begin <= connection.began and now <= end:
                seen.append(now - connection.began)
            answers.append((connection.prompt, connection.buffer))
            if now < end:
                connection.ask(turn % PROMPTS, requests[turn % PROMPTS])
                turn += 1
            else:
                busy -= 1
    cpu = time.process_time() - (cpu or 0.0)
    for prompt, answer in answers:
        if digest(text_of(answer)) != expected[prompt]:
            sys.exit(f"a wrong stream for prompt {prompt}: {text_of(answer)!r}")
    print(json.dumps({"seen": seen, "checked": len(answers), "cpu": cpu}))


# --- the sides -----------------------------------------------------------------------------------------------------


class Process:
    """A started process, its address, and the processor time that it has used."""

    def __init__(self, stack, name, command, folder, address=None):
        env = {**os.environ, "XDG_CONFIG_HOME": folder}
        env = {k: v for k, v in env.items() if not k.startswith("ACTOR_NODE")}
        self.name, self.log = name, os.path.join(folder, f"{name}.log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
        stack.callback(self.stop)
        self.address, self.cluster = address, None
        if not address:
            self.address = self.line("http://")
        if "--role" in command:
            self.cluster = self.line("cluster tcp://")

    def line(self, prefix):
        line = self.process.stdout.readline().strip()
        if not line.startswith(prefix):
            self.fail()
        return line.removeprefix(prefix)

    def fail(self):
        with open(self.log) as log:
            sys.exit(f"{self.name} did not start:\n{log.read()[-2000:]}")

    def ask(self, method, path, sent=None):
        connection = http.client.HTTPConnection(self.address, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, sent, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def wait(self, what):
        end = time.monotonic() + START
        while time.monotonic() < end:
            if self.process.poll() is not None:
                self.fail()
            with contextlib.suppress(OSError, http.client.HTTPException):
                if what():
                    return self
            time.sleep(0.05)
        self.fail()

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(args, stack, folder):
    """Every process, one after the other; by side: its processes and the addresses to ask."""
    quiet = ["--http-listen", "127.0.0.1:0", "--log-level", "warn"]

    def node(name, *more):
        return Process(stack, name, [args.binary, "--name", name, *more, *quiet], folder)

    controller = node("controller", "--role", "controller")
    seed = ["--seed", controller.cluster]
    workers = [node(f"worker{i}", "--role", "worker", "--engine", "fake", *seed) for i in (1, 2)]
    gateway = node("gateway", "--role", "gateway", *seed)

    def both_serve():
        rows = json.loads(gateway.ask("GET", "/v1/cluster")[1])["nodes"]
        return sum(1 for row in rows if row["worker"]) == 2 and gateway.ask("GET", "/readiness")[0] == 200

    gateway.wait(both_serve)
    nodes = [node(f"node{i}", "--engine", "fake") for i in (1, 2)]
    for one in nodes:
        one.wait(lambda one=one: one.ask("GET", "/readiness")[0] == 200)
    port = free_port()
    command = [args.python, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", *(f"http://{one.address}" for one in nodes), "--policy", "cache_aware"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), "--log-level", "warn"]
    router = Process(stack, "router", command, folder, f"127.0.0.1:{port}")
    router.wait(lambda: router.ask("POST", "/v1/completions", body("hello"))[0] == 200)
    return {
        "ours": ([gateway, controller, *workers], [gateway.address]),
        "sglang": ([router, *nodes], [router.address]),
        "direct": (nodes, [one.address for one in nodes]),
    }


# --- the comparison ------------------------------------------------------------------------------------------------


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def measure(args, side, concurrency, expected, tokens=TOKENS):
    processes, addresses = side
    before = [process.cpu() for process in processes]
    command = [sys.executable, __file__, "--client", json.dumps([addresses, concurrency, args.seconds, not args.lazy_ack, expected, tokens])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"the client: {done.stderr.strip()}")
    got = json.loads(done.stdout)
    used = {p.name: (p.cpu() - b) / got["checked"] * 1e6 for p, b in zip(processes, before)}
    used["client"] = got["cpu"] / len(got["seen"]) * 1e6
    ms = {name: quantile(got["seen"], q) * 1e3 for name, q in (("p50", 0.5), ("p99", 0.99))}
    return {"rps": len(got["seen"]) / args.seconds, **ms, "checked": got["checked"], "cpu_us": used}


def reference(one, tokens=TOKENS):
    answers = [one.ask("POST", "/v1/completions", body(prompt, tokens).replace(b'"stream": true', b'"stream": false'))
               for prompt in prompts()]
    texts = [json.loads(answer)["choices"][0]["text"] for status, answer in answers if status == 200]
    # Of one token there are fewer than of prompts.
    assert len(texts) == PROMPTS and len(set(texts)) > (PROMPTS // 2 if tokens > 2 else 2), "the fake engine answers each prompt differently"
    return [digest(text) for text in texts]


def summary(seen, concurrency):
    """Medians over the rounds; `added` and ratios are taken within a round first."""
    rounds = seen[concurrency]
    result = {}
    for side in SIDES:
        mine = [r[side] for r in rounds]
        row = {key: statistics.median(m[key] for m in mine) for key in ("rps", "p50", "p99")}
        if side != "direct":
            for key in ("p50", "p99"):
                row[f"added_{key}"] = statistics.median(r[side][key] - r["direct"][key] for r in rounds)
        row["cpu_us"] = {name: statistics.median(m["cpu_us"][name] for m in mine) for name in mine[0]["cpu_us"]}
        result[side] = row
    ratio = {"rps": statistics.median(r["ours"]["rps"] / r["sglang"]["rps"] for r in rounds)}
    for key in ("p50", "p99"):
        theirs = result["sglang"][f"added_{key}"]
        ratio[f"added_{key}"] = result["ours"][f"added_{key}"] / theirs if theirs > 0 else None
    result["ours_to_sglang"] = ratio
    return result


def show(results):
    print(f"\n{'':>5} {'side':<8}{'req/s':>8}{'p50 ms':>9}{'p99 ms':>9}{'+p50 ms':>9}{'+p99 ms':>9}  processor µs a request")
    for concurrency, result in results.items():
        for side in SIDES:
            row = result[side]
            added = "".join(f"{row[key]:>9.2f}" if key in row else f"{'':>9}" for key in ("added_p50", "added_p99"))
            cpu = ", ".join(f"{name} {us:.0f}" for name, us in row["cpu_us"].items())
            print(f"{concurrency:>5} {side:<8}{row['rps']:>8.0f}{row['p50']:>9.2f}{row['p99']:>9.2f}{added}  {cpu}")
        ratio = {k: "-" if v is None else f"{v:.2f}" for k, v in result["ours_to_sglang"].items()}
        print(f"{'':>5} ours / sglang: requests a second {ratio['rps']} (wanted 2 or more), "
              f"added p50 {ratio['added_p50']} (wanted 0.5 or less), added p99 {ratio['added_p99']}")


def main():
    if sys.argv[1:2] == ["--client"]:
        client(*json.loads(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--python", default=sys.executable, help="a Python that has sglang-router")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--concurrency", default="1,16,128")
    parser.add_argument("--lazy-ack", action="store_true", help="a client that acknowledges when it likes, as most do")
    parser.add_argument("--json", help="where all figures of all rounds go")
    args = parser.parse_args()
    levels = [int(level) for level in args.concurrency.split(",")]
    seen = {level: [] for level in levels}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        sides = start(args, stack, folder)
        expected = reference(sides["direct"][0][0])
        for number in range(args.rounds):
            # Each side is first in its turn.
            order = SIDES[number % 3 :] + SIDES[: number % 3]
            for level in levels:
                result = {side: measure(args, sides[side], level, expected) for side in order}
                seen[level].append(result)
                brief = {side: [round(r["rps"]), round(r["p50"], 2), round(r["p99"], 2)] for side, r in result.items()}
                print(json.dumps({"round": number, "concurrency": level, **brief}), flush=True)
    results = {level: summary(seen, level) for level in levels}
    show(results)
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"summary": results, "rounds": seen}, out, indent=1)


if __name__ == "__main__":
    main()
