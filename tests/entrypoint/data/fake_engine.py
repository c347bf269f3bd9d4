"""Imitates vLLM's processes and log for the guardian: `fake_engine.py MODE PORT MODEL`. Standard library only.

normal     becomes ready, answers, drains          hang       stands still while loading, repeats vLLM's warning
crash      dies with an exception while loading     exit2      refuses its options
unproven   its core leaves no proof                 stubborn   ignores SIGTERM
stall      becomes ready, then takes no step        slow       loads for three seconds with a bar
flaky      crashes at the first start only          noisy      prints secrets, escapes and a long line
"""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODE, PORT, MODEL = sys.argv[1], int(sys.argv[2]), sys.argv[3]
RUN = Path(os.environ["APPLIANCE_RUN_DIR"])
clock = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)  # noqa: E731
flights = []
draining = threading.Event()


def put(path, record):
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(record))
    temporary.replace(path)


def prove(role):
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    put(RUN / "plugins" / f"{os.getpid()}.json", {"pid": os.getpid(), "role": role, "at": clock()})


def log(text, level="INFO", role="EngineCore"):
    print(f"({role} pid={os.getpid()}) {level} {time.strftime('%m-%d %H:%M:%S')} [fake.py:1] {text}", flush=True)


def beat():
    while True:
        stalled = MODE == "stall"
        record = {"at": clock(), "pid": os.getpid(), "step": 1, "step_at": clock() - (99 if stalled else 0)}
        record |= {"running": int(stalled) or len(flights), "waiting": 0, "in_flight": int(stalled) or len(flights)}
        record |= {"sockets": 0, "awaiting": int(stalled), "busy_since": clock() - 99 if stalled else None}
        put(RUN / "heartbeat", record)
        try:
            if json.loads((RUN / "phase.json").read_text())["phase"] == "draining":
                draining.set()
        except (OSError, ValueError):
            pass
        time.sleep(0.3)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        key = os.environ.get("VLLM_API_KEY")
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.send_error(401)
            return
        body = json.dumps({"data": [{"id": MODEL}]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        if draining.is_set():
            self.send_error(503)
            return
        flights.append(1)
        self.send_response(200)
        self.end_headers()
        for number in range(int(self.path.rpartition("/")[2])):
            self.wfile.write(f"{number}\n".encode())
            time.sleep(0.25)
        flights.pop()


def core():
    if MODE != "unproven":
        prove("core")
    time.sleep(3600)


def main():
    if len(sys.argv) > 4:
        core()
        return
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    if MODE == "exit2":
        print("serve.py: error: argument --max-model-len: invalid value", file=sys.stderr)
        sys.exit(2)
    first = not (RUN / "started-before").exists()
    (RUN / "started-before").touch()
    prove("api")
    if MODE == "noisy":
        print(f"key={os.environ['VLLM_API_KEY']} \x1b[31mred\x1b[0m \x07", flush=True)
        sys.stdout.buffer.write(b"\xff\xfe not text\n" + b"x" * 300_000 + b"\n")
        sys.stdout.flush()
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    children = [subprocess.Popen([sys.executable, *sys.argv, "core"])]
    children.append(subprocess.Popen(["sleep", "3600"]))
    log("Starting to load model fake...")
    if MODE == "crash" or (MODE == "flaky" and first):
        time.sleep(1.5)
        log("EngineCore failed to start.", "ERROR")
        log("ValueError: the weights are sour", "ERROR")
        print("RuntimeError: Engine core initialization failed. See root cause above.", file=sys.stderr, flush=True)
        os._exit(1)
    while MODE == "hang":
        log("No available shared memory broadcast block found in 60 seconds.")
        time.sleep(0.3)
    if MODE == "slow":
        for part in range(1, 11):
            print(f"\rLoading safetensors checkpoint shards: {part * 10:3d}% Completed | {part}/10 [00:0{part - 1}<00:01, 1it/s]", end="", flush=True)
            time.sleep(0.3)
        print(flush=True)
    log("Loading weights took 0.10 seconds")
    time.sleep(0.6)
    log("init engine (profile, create kv cache, warmup model) took 0.10 seconds")
    threading.Thread(target=beat, daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    server.daemon_threads = True

    def stop(*_):
        for child in children:
            child.kill()
        os._exit(0)

    if MODE != "stubborn":
        signal.signal(signal.SIGTERM, stop)
    server.serve_forever()


main()
