"""A server under test, and clients of it: Python's standard library alone."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROGRAM = os.environ.get("ORRERY_SERVER", os.path.join(ROOT, "build/samples/server/orrery-server"))
MODEL = os.path.join(ROOT, "samples/models/demo-q8_0.gguf")
SLOW = float(os.environ.get("ORRERY_TEST_SLOW", "1"))  # a machine with other work, or sanitizers: factor of every time limit

# The demo model answers questions about a text.
FACT = "Magnus owns a gray wolf. What animal does Magnus own?"
# It has learnt no calls; a grammar holds it to this template's.
CALLING_TEMPLATE = (
    "{%- for m in messages -%}{{- '<' + m.role + '>' + m.content -}}{%- for c in m.tool_calls or [] -%}"
    "{{- '<call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}</call>' -}}{%- endfor -%}"
    "{{- '</>' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}")


def run_program(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60 * SLOW)


class Server:
    """The program, on a free port."""

    def __init__(self, *options, model=MODEL):
        self.errors = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen([PROGRAM, model, "--port", "0", "--threads", "2", *options], stdout=subprocess.PIPE, stderr=self.errors, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"on http://(\S+):(\d+)/v1", line)
        if not found:
            self.errors.seek(0)
            raise RuntimeError("the server does not start: " + line + self.errors.read())
        self.port = int(found.group(2))

    def stop(self):
        """Ends the server as Ctrl-C does; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(timeout=10 * SLOW)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process.stdout.close()
        self.errors.close()
        return code

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=30 * SLOW)

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body as text)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SLOW)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()
        finally:
            connection.close()

    def post(self, path, body, headers=None):
        status, _, text = self.request("POST", path, body, headers)
        return status, json.loads(text)

    def chat(self, content=FACT, **fields):
        """(status, answer) of a chat with one message, or of `messages`."""
        return self.post("/v1/chat/completions", chat_body(content, **fields))

    def stream(self, path, body, headers=None):
        """The chunks of a streamed answer; the last is "[DONE]", or an error."""
        status, head, text = self.request("POST", path, dict(body, stream=True), headers)
        if status != 200:
            raise AssertionError("%d %s" % (status, text))
        assert head["Content-Type"] == "text/event-stream", head["Content-Type"]
        return events_of(text)

    def begin_stream(self, body):
        """A socket on which an answer has begun."""
        connection = self.connect()
        send_request(connection, dict(body, stream=True))
        got = b""
        while b"data: " not in got:
            part = connection.recv(4096)
            if not part:
                raise AssertionError("the answer does not begin: %r" % got)
            got += part
        return connection

    def metrics(self):
        _, _, text = self.request("GET", "/metrics")
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line and line[0] != "#"}

    def wait_for(self, name, value, seconds=5):
        """Waits until a metric has a value."""
        end = time.monotonic() + seconds * SLOW
        while (found := self.metrics()[name]) != value:
            if time.monotonic() > end:
                raise AssertionError("%s is %s, not %s" % (name, found, value))
            time.sleep(0.02)


def chat_body(content=FACT, **fields):
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0}
    body.update(fields)
    return body


# An answer that goes on until the context's end.
def long_body(prompt="Magnus owns a", **fields):
    return dict({"prompt": prompt, "temperature": 0}, **fields)


def request_bytes(body, path="/v1/chat/completions", headers=""):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n" % (path.encode(), len(text), headers.encode()) + text


def send_request(connection, body):
    connection.sendall(request_bytes(body, "/v1/completions" if "prompt" in body else "/v1/chat/completions"))


def read_all(connection):
    """What arrives until the other side closes."""
    got = b""
    try:
        while part := connection.recv(65536):
            got += part
    except ConnectionResetError:
        pass
    return got


def events_of(text):
    data = [part[6:] for part in text.split("\n\n") if part.startswith("data: ")]
    return [part if part == "[DONE]" else json.loads(part) for part in data]


def text_of(chunks):
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c != "[DONE]" and c["choices"])


class ServerCase(unittest.TestCase):
    """Cases that share one server, with OPTIONS. It is alive after each of them, and ends well."""

    OPTIONS = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.OPTIONS)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        if code != 0:
            raise AssertionError("the server's exit code is %d" % code)

    def tearDown(self):
        self.assertIsNone(self.server.process.poll(), "the server has ended")
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def refused(self, param, body, path="/v1/chat/completions", status=400):
        """The request is refused, and the error names the field."""
        found, answer = self.server.post(path, body)
        self.assertEqual(found, status, answer)
        self.assertEqual(set(answer["error"]), {"message", "type", "param", "code"})
        self.assertEqual(answer["error"]["param"], param, answer)
        return answer["error"]
