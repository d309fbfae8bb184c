"""A child process with a real model behind two protocols: `python model_server.py MODEL.gguf [--projector FILE] [--vectors]`.

OpenAI's protocol is served by the engine itself; Ollama's by the few lines below, which hand everything to the same engine. One
line of JSON on standard output says where both are; the end of standard input ends it.
"""

import argparse
import json
import os
import select
import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import xllamacpp

NAME = "smollm2"
SLOTS = 2
CONTEXT = 4096


def open_engine(options: argparse.Namespace) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    if options.projector:
        params.mmproj.path = options.projector
    params.n_parallel, params.n_ctx = SLOTS, CONTEXT * SLOTS
    params.n_batch = params.n_ubatch = 128
    if options.vectors:
        params.n_batch = params.n_ubatch = 512
        params.embedding, params.pooling_type = True, xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.port, params.api_keys = 0, [os.environ["MODEL_SERVER_KEY"]]
    params.endpoint_slots = params.endpoint_metrics = True
    params.warmup, params.verbosity, params.cache_ram_mib = False, 0, 0
    return xllamacpp.Server(params)


class Ollama(BaseHTTPRequestHandler):
    """As much of Ollama's protocol as its own client and our provider use."""

    protocol_version = "HTTP/1.1"
    engine: Any = None
    reads_images = False

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if asked.get("model") != NAME:
            self.answer(404, {"error": f"model '{asked.get('model')}' not found"})
        elif self.path == "/api/show":
            self.answer(
                200,
                {"capabilities": ["completion"] + ["vision"] * self.reads_images, "details": {"format": "gguf"}, "model_info": {}},
            )
        elif self.path == "/api/chat":
            self.chat(asked)
        elif self.path == "/api/embed":
            self.embed(asked)
        else:
            self.answer(404, {"error": "no such path"})

    def answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def embed(self, asked: dict[str, Any]) -> None:
        said = self.engine.handle_embeddings({"input": asked["input"]})
        if "error" in said:
            self.answer(400, {"error": json.dumps({"error": said["error"]})})
            return
        rows = [row["embedding"] for row in said["data"]]
        self.answer(200, {"model": NAME, "embeddings": rows, "prompt_eval_count": said["usage"]["prompt_tokens"]})

    def chat(self, asked: dict[str, Any]) -> None:
        started = False

        def send(line: object) -> None:
            nonlocal started
            if not started:
                self.send_response(200)
                self.send_header("content-type", "application/x-ndjson")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                started = True
            data = json.dumps(line).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def message(text: str) -> dict[str, object]:
            return {"model": NAME, "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", "content": text}}

        usage: dict[str, Any] = {}
        reason: list[str] = []

        def callback(chunk: dict[str, Any]) -> bool:
            try:
                if "error" in chunk:
                    if started:
                        send({"error": json.dumps({"error": chunk["error"]})})
                    else:
                        self.answer(chunk["error"].get("code", 500), {"error": json.dumps({"error": chunk["error"]})})
                    return True
                usage.update(chunk.get("usage") or {})
                for choice in chunk["choices"]:
                    if choice["delta"].get("content"):
                        send({**message(choice["delta"]["content"]), "done": False})
                    if choice.get("finish_reason"):
                        reason.append(choice["finish_reason"])
                return self.left()
            except OSError:
                return True

        self.engine.handle_chat_completions(engine_body(asked), callback)
        if reason:
            counts = {"prompt_eval_count": usage.get("prompt_tokens"), "eval_count": usage.get("completion_tokens")}
            send({**message(""), "done": True, "done_reason": reason[0], **counts})
            self.wfile.write(b"0\r\n\r\n")

    def left(self) -> bool:
        """Whether the client closed its connection."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)


def engine_body(asked: dict[str, Any]) -> dict[str, Any]:
    messages = []
    for message in asked["messages"]:
        images = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}} for image in message.get("images") or ()
        ]
        content = [*images, {"type": "text", "text": message["content"]}] if images else message["content"]
        messages.append({"role": message["role"], "content": content})
    options = asked.get("options") or {}
    body = {"messages": messages, "stream": True, "return_progress": True, "stream_options": {"include_usage": True}}
    body |= {"max_tokens": options.get("num_predict", -1), "temperature": options.get("temperature", 0.8)}
    body |= {
        key: options[key] for key in ("seed",) if options.get(key) is not None
    }  # no stop texts: this engine swallows what looks like one
    body["cache_prompt"] = "seed" not in body
    if asked.get("format"):
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": asked["format"]}}
    return body


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--projector")
    parser.add_argument("--vectors", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which closes our standard input
    engine = open_engine(options)
    # The engine hangs when it is closed before its loop has begun, so it answers once.
    if options.vectors:
        engine.handle_embeddings({"input": ["a"]})
    else:
        engine.handle_completions({"prompt": "a", "n_predict": 1, "cache_prompt": False})
    Ollama.engine, Ollama.reads_images = engine, bool(options.projector)
    ollama = ThreadingHTTPServer(("127.0.0.1", 0), Ollama)
    ollama.daemon_threads = True
    threading.Thread(target=ollama.serve_forever, daemon=True).start()
    where = {"openai": engine.listening_address, "ollama": f"http://127.0.0.1:{ollama.server_address[1]}"}
    sys.stdout.write(json.dumps(where) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    ollama.shutdown()
    Ollama.engine = None
    del engine


if __name__ == "__main__":
    main()
