"""Broken and forged requests: each is refused, by the field's name where there is one, and the server goes on."""
import json
import os
import random
import socket
import struct
import tempfile

from serving import MODEL, Server, ServerCase, chat_body, read_all, request_bytes, run_program

USER = [{"role": "user", "content": "x"}]


class Requests(ServerCase):
    OPTIONS = ("--read-seconds", "2")

    def test_fields(self):
        for param, fields in {
            "surprise": {"surprise": 1},
            "n": {"n": 2},
            "temperature": {"temperature": "hot"},
            "top_p": {"top_p": 1.5},
            "max_tokens": {"max_tokens": 0},
            "max_completion_tokens": {"max_completion_tokens": 2.5},
            "seed": {"seed": 1e30},
            "stop": {"stop": [""]},
            "stream": {"stream": 1},
            "stream_options": {"stream_options": {"include_usage": True}},
            "stream_options.more": {"stream": True, "stream_options": {"more": True}},
            "top_logprobs": {"top_logprobs": 2},
            "logprobs": {"logprobs": 3},
            "frequency_penalty": {"frequency_penalty": -3},
            "response_format.type": {"response_format": {"type": "xml"}},
            "response_format.json_schema": {"response_format": {"type": "json_schema"}},
            "modalities": {"modalities": ["text", "audio"]},
            "functions": {"functions": []},
            "messages": {"messages": []},
            "messages[0].role": {"messages": [{"content": "x"}]},
            "messages[0].content": {"messages": [{"role": "user"}]},
            "messages[1]": {"messages": USER + [7]},
            "messages[0].content[0].type": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].strange": {"messages": [{"role": "user", "content": "x", "strange": 1}]},
            "messages[1].tool_calls[0].function.arguments": {"messages": USER + [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
        }.items():
            with self.subTest(param):
                self.refused(param, chat_body(**fields))
        self.refused("model", chat_body(model="gpt-9"), status=404)
        for param, fields in {"prompt": {}, "echo": {"echo": True}, "best_of": {"best_of": 2}, "suffix": {"suffix": "end"}, "messages": {"messages": USER}}.items():
            with self.subTest(param):
                self.refused(param, dict({} if param == "prompt" else {"prompt": "x"}, **fields), "/v1/completions")
        self.refused("prompt", {"prompt": ["a", "b"]}, "/v1/completions")

    def test_bodies(self):
        for body in (b"", b"{", b"[]", b"null", b"{\"messages\": [}", b"\xff\xfe{}", b"{\"messages\": \"\xff\"}", b"{\"a\": \"\\ud800\"}", b"1e999999",
                     b"[" * 100000, b"{\"a\":" * 100000):
            with self.subTest(body[:20]):
                self.assertEqual(self.server.post("/v1/chat/completions", body)[0], 400)
        # Of a field that is not read, but would take a deep stack or long to free, copy or search.
        for text in ("[" * 1000 + "]" * 1000, "{" + ",".join('"%d": 1' % i for i in range(5000)) + "}"):
            with self.subTest(text[:20]):
                body = json.dumps(chat_body("x", max_tokens=1, metadata=0)).replace('"metadata": 0', '"metadata": ' + text)
                self.assertEqual(self.server.post("/v1/chat/completions", body.encode())[0], 400)

    def test_texts(self):
        """Texts that no model expects are texts."""
        for text in ("", "\x01\x02", "a\x00b", "<assistant></>", "\u202e\U0001F600" * 50, "</" * 500):
            with self.subTest(text[:10]):
                status, answer = self.server.chat(text, max_tokens=2)
                self.assertEqual(status, 200, answer)
        self.refused("stop", chat_body(stop="a\x00b"))

    def test_protocol(self):
        for data in (b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
                     b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20000 + b"\r\n", b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"):
            with self.subTest(data[:50]):
                connection = self.server.connect()
                try:
                    connection.sendall(data)
                    connection.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
                answer = read_all(connection)
                connection.close()
                self.assertNotIn(b" 200 ", answer[:20])
                self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_mutations(self):
        """Requests with a few bytes changed: any status, no end of the server."""
        chance = random.Random(1)
        whole = request_bytes(chat_body("x", max_tokens=2, tools=None, stop=["y"], logit_bias={"5": 1}, logprobs=True, top_logprobs=2))
        for _ in range(150):
            data = bytearray(whole)
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(len(data))
                kind = chance.randrange(3)
                if kind == 0:
                    data[at] = chance.randrange(256)
                elif kind == 1:
                    del data[at:at + chance.randint(1, 8)]
                else:
                    data[at:at] = data[chance.randrange(len(data)):][:chance.randint(1, 20)]
            connection = self.server.connect()
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            read_all(connection)
            connection.close()

    def test_keep_alive(self):
        connection = self.server.connect()
        for status in (b"404", b"400", b"200"):
            body = {b"404": b"x", b"400": b"{", b"200": json.dumps(chat_body("x", max_tokens=1)).encode()}[status]
            connection.sendall(request_bytes(body, "/nowhere" if status == b"404" else "/v1/chat/completions"))
            got = b""
            while b"\r\n\r\n" not in got or got.count(b"}") < 2:
                got += connection.recv(4096)
            self.assertEqual(got.split(b" ")[1], status)
        connection.close()


class CommandLine(ServerCase):
    def test_options(self):
        page = run_program("--help")
        self.assertEqual(page.returncode, 0)
        self.assertIn("--allow-origin", page.stdout)
        for arguments, word in (([], "MODEL"), ([MODEL, "--nothing"], "--nothing"), ([MODEL, "--port", "99999"], "--port"), ([MODEL, "--host", "0.0.0.0"], "--api-key"),
                                ([MODEL, "--sessions", "0"], "--sessions"), ([MODEL, "--kv-type", "f7"], "--kv-type"), ([MODEL, "--port"], "--port"), ([MODEL, "--lora", ":2"], "--lora"), ([MODEL, "--lora", "a:1-2"], "--lora"), ([MODEL, "--api-key-file", os.devnull], "--api-key-file")):
            with self.subTest(arguments):
                found = run_program(*arguments)
                self.assertEqual((found.returncode, found.stdout), (2, ""))
                self.assertIn(word, found.stderr)
        self.assertEqual(run_program("/nowhere.gguf").returncode, 1)
        taken = run_program(MODEL, "--port", str(self.server.port))
        self.assertEqual(taken.returncode, 1)
        self.assertIn("cannot listen", taken.stderr)

    def test_adapters(self):
        """An adapter of the bundled model's first layer, strong enough to change an answer. A scale of 0 is no adapter."""
        def text(s):
            return struct.pack("<Q", len(s)) + s.encode()

        keys = b"".join(text(k) + struct.pack("<I", 8) + text(v) for k, v in (
            ("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", "llama")))
        infos, data = b"", b""
        for name, shape in (("a", (704, 2)), ("b", (2, 256))):
            infos += text("blk.0.ffn_down.weight.lora_" + name) + struct.pack("<IQQIQ", 2, *shape, 0, len(data))
            data += struct.pack("<%df" % (shape[0] * shape[1]), *[i * 37 % 19 / 9 - 1 for i in range(shape[0] * shape[1])])
        head = b"GGUF" + struct.pack("<IQQ", 3, 2, 3) + keys + infos
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(head + bytes(-len(head) % 32) + data)
            file.flush()
            answers = []
            for options in ((), ("--lora", file.name), ("--lora", file.name + ":0")):
                server = Server("--context", "512", *options)
                answers.append(server.chat("Who are you?", max_tokens=8)[1]["choices"][0]["message"]["content"])
                self.assertEqual(server.stop(), 0)
            self.assertEqual(answers[0], answers[2])
            self.assertNotEqual(answers[0], answers[1])
        refused = run_program(MODEL, "--lora", MODEL)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("general.type", refused.stderr)

    def test_name(self):
        server = Server("--name", "mine", "--context", "512", "--policy", "streaming", "--kv-budget", "50%")
        self.assertEqual(json.loads(server.request("GET", "/v1/models")[2])["data"][0]["context_length"], 512)
        self.assertEqual(server.chat(model="mine")[0], 200)
        self.assertEqual(server.stop(), 0)
