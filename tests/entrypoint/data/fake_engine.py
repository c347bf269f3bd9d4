"""Imitates vLLM's processes and log for the guardian: `fake_engine.py MODE PORT MODEL`. Standard library only.

normal     becomes ready, answers, drains          hang       stands still while loading, repeats vLLM's warning
crash      dies with an exception while loading     exit2      refuses its options
unproven   its core leaves no proof                 stubborn   ignores SIGTERM
stall      becomes ready, then takes no step        slow       loads, with a bar, the parts that a test lets it
mute       lists its model and gives no token       noisy      prints the key, escapes and a long line
flaky      crashes at the first start only          chatty     prints without end once it is ready
drifts     gives other tokens with compiled code    brittle    crashes on compiled code of an earlier start
moody      gives other tokens at each question      textless   completes no text
tripping   dies once it has compiled, twice        doomed     dies once it has compiled, at every start
disturbed  gives other tokens once when warm       unsealable leaves a folder where its stamp would be

Every mode that loads "compiles" into VLLM_CACHE_ROOT, and finds there what an earlier start compiled.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODE, PORT, MODEL = sys.argv[1], int(sys.argv[2]), sys.argv[3]
RUN = Path(os.environ["APPLIANCE_RUN_DIR"])
COMPILED = Path(os.environ.get("VLLM_CACHE_ROOT", "/nonexistent")) / "graph"
WARM = COMPILED.exists()
flights: list[int] = []
asked: list[int] = []
draining = threading.Event()


def clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def put(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(record))
    temporary.replace(path)


def read(name: str) -> str:
    """The text of a file that a test writes while this runs; empty before that."""
    with suppress(FileNotFoundError):
        return (RUN / name).read_text()
    return ""


def prove(role: str) -> None:
    put(RUN / "plugins" / f"{os.getpid()}.json", {"pid": os.getpid(), "role": role, "at": clock()})


def log(text: str, level: str = "INFO") -> None:
    now = time.strftime("%m-%d %H:%M:%S")
    print(f"(EngineCore pid={os.getpid()}) {level} {now} [fake.py:1] {text}", flush=True)


def beat() -> None:
    stalled = int(MODE == "stall")
    while True:
        working = stalled or len(flights)
        record: dict[str, float | None] = {
            "at": clock(),
            "step": 1,
            "step_at": clock() - 99 * stalled,
            "waiting": 0,
            "sockets": 0,
        }
        record |= {"running": working, "in_flight": working, "awaiting": stalled}
        record |= {"busy_since": clock() - 99 if stalled else None}
        put(RUN / "heartbeat", record)
        with suppress(OSError, ValueError):
            if json.loads((RUN / "phase.json").read_text())["phase"] == "draining":
                draining.set()
        time.sleep(0.3)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        key = os.environ.get("VLLM_API_KEY")
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.send_error(401)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": MODEL}]}).encode())

    def do_POST(self) -> None:
        if draining.is_set():
            self.send_error(503)
            return
        if self.path == "/v1/completions":
            self.complete(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            return
        self.send_response(200)
        self.end_headers()
        flights.append(1)
        for number in range(int(self.path.rpartition("/")[2])):
            self.wfile.write(f"{number}\n".encode())
            time.sleep(0.25)
        flights.pop()

    def complete(self, wish: dict[str, Any]) -> None:
        if MODE == "mute":
            time.sleep(3600)
        if MODE == "textless":
            self.send_error(400)
            return
        shift = int(MODE == "drifts" and WARM) + (time.monotonic_ns() if MODE == "moody" else 0)
        if MODE == "disturbed" and WARM and wish.get("return_token_ids") and not asked:
            asked.append(1)
            shift = 1
        ids = [(len(wish["prompt"]) * place + shift) % 997 for place in range(wish["max_tokens"])]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(
            json.dumps({"choices": [{"token_ids": ids if wish.get("return_token_ids") else None}]}).encode()
        )


def load_parts() -> None:
    for part in range(1, 11):
        done = f"{part * 10:3d}% Completed | {part}/10 [00:0{part - 1}<00:01, 1it/s]"
        while part > int(read("parts") or 0):
            time.sleep(0.02)
        print(f"\rLoading safetensors checkpoint shards: {done}", end="", flush=True)


def load() -> None:
    first = not (RUN / "started-before").exists()
    (RUN / "started-before").touch()
    if MODE == "noisy":
        print(f"key={os.environ['VLLM_API_KEY']} \x1b[31mred\x1b[0m \x07", flush=True)
        sys.stdout.buffer.write(b"\xff\xfe not text\n" + b"x" * 300_000 + b"\n")
        sys.stdout.flush()
    if MODE != "hang":
        log("Starting to load model fake...")
    if MODE == "crash" or (MODE == "flaky" and first):
        time.sleep(1.5)
        log("EngineCore failed to start.", "ERROR")
        log("ValueError: the weights are sour", "ERROR")
        print("RuntimeError: Engine core initialization failed. See root cause above.", file=sys.stderr, flush=True)
        os._exit(1)
    if MODE == "brittle" and WARM:
        log(f"OSError: {COMPILED}: invalid ELF header", "ERROR")
        os._exit(1)
    with suppress(OSError):
        COMPILED.write_text("compiled\n")
    if MODE == "unsealable":
        (COMPILED.parents[1] / "stamp.json").mkdir(exist_ok=True)
    if MODE in ("tripping", "doomed"):
        count = RUN / "tripped"
        with suppress(FileExistsError):
            count.touch(exist_ok=False)
        if MODE == "doomed" or len(count.read_text()) < 2:
            count.write_text(count.read_text() + "x")
            os._exit(1)
    while MODE == "hang":
        log("No available shared memory broadcast block found in 60 seconds.")
        time.sleep(0.3)
    if MODE == "slow":
        load_parts()
    log("\nLoading weights took 0.10 seconds")
    time.sleep(0.6)
    log("init engine (profile, create kv cache, warmup model) took 0.10 seconds")


def chat() -> None:
    time.sleep(2)
    while True:
        log("chatter " * 1000)
        time.sleep(0.001)


def main() -> None:
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    if sys.argv[4:] == ["core"]:
        if MODE != "unproven":
            prove("core")
        time.sleep(3600)
    if MODE == "exit2":
        print("serve.py: error: argument --max-model-len: invalid value", file=sys.stderr)
        sys.exit(2)
    prove("api")
    children = [subprocess.Popen([sys.executable, *sys.argv, "core"]), subprocess.Popen(["sleep", "3600"])]

    def stop(*_: object) -> None:
        for child in children:
            child.kill()
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if MODE == "stubborn" else stop)
    load()
    # An engine answers after its core has started, never before.
    while MODE != "unproven" and not (RUN / "plugins" / f"{children[0].pid}.json").exists():
        time.sleep(0.01)
    threading.Thread(target=beat, daemon=True).start()
    if MODE == "chatty":
        threading.Thread(target=chat, daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    server.daemon_threads = True
    server.serve_forever()


main()
